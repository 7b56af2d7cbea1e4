"""Batches to verify, drawn by hypothesis, for whatever claims to be the `verify` kernel (gate 4).

Batch, lengths (0 included), ragged rows, odd vocabularies, padding, strides, dtypes, degenerate rows, faulty logits,
every sampling option, all rules mixed. Logits, rows and keys come from seeds that hypothesis draws.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from specmesh.kernels.inputs import VerifyInput
from specmesh.kernels.reference.draft_step import make_rows
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import RowArrays
from specmesh.runtime.types import Rule, Sampling


@dataclass(frozen=True)
class VerifyExample:
    """Arguments of `ops.verify`."""

    logits: Tensor
    inputs: tuple[VerifyInput, ...]
    vocabulary_size: int

    def rows_of(self, session: int) -> list[list[float]]:
        """One session's raw logits over the real vocabulary, as lists."""
        start = sum(len(item.draft_token_ids) + 1 for item in self.inputs[:session])
        stop = start + len(self.inputs[session].draft_token_ids) + 1
        return self.logits[start:stop, : self.vocabulary_size].double().tolist()  # type: ignore[no-any-return]


def samplings() -> st.SearchStrategy[Sampling]:
    """Every option, at values that fall on no tie of small rows."""
    penalties = {
        "repetition_penalty": st.sampled_from([1.0, 1.31, 0.83]),
        "presence_penalty": st.sampled_from([0.0, 0.61, -0.4]),
        "frequency_penalty": st.sampled_from([0.0, 0.37]),
    }
    return st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 1e-40, 0.3, 0.7, 1.0, 1.7]),
        top_p=st.sampled_from([1.0, 1.0, 0.9137, 0.6271, 1e-6]),
        top_k=st.sampled_from([0, 0, 1, 2, 5, 9_999_999]),
        min_p=st.sampled_from([0.0, 0.0, 0.0713, 1.0]),
        logit_bias=st.sampled_from([(), (), ((0, 1.3), (2, -2.1))]),
        **penalties,
    )


@dataclass(frozen=True)
class _Session:
    sampling: Sampling
    rule: Rule
    length: int
    seed: int
    block_start: int
    rows: str


_SESSIONS = st.builds(
    _Session,
    sampling=samplings(),
    rule=st.sampled_from(list(Rule)),
    length=st.integers(0, 8),
    seed=st.integers(0, 2**32 - 1),
    block_start=st.sampled_from([0, 1, 77, 2**31, 2**32 - 9]),
    rows=st.sampled_from(["near", "far", "target", "one_hot", "none"]),
)


@st.composite
def verify_examples(
    draw: st.DrawFn, *, max_batch: int = 4, vocabularies: tuple[int, ...] = (1, 2, 3, 5, 17, 64, 101)
) -> VerifyExample:
    """A whole batch."""
    vocabulary_size = draw(st.sampled_from(vocabularies))
    padding = draw(st.sampled_from([0, 0, 1, 7]))
    sessions = draw(st.lists(_SESSIONS, min_size=1, max_size=max_batch))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    contrast = draw(st.sampled_from([0.5, 2.0, 6.0]))
    rows = [_logits(session, vocabulary_size + padding, contrast) for session in sessions]
    logits = torch.cat(rows).to(dtype)
    logits[:, vocabulary_size:] = draw(st.sampled_from([0.0, 1e4, float("nan")]))
    items = []
    for index, session in enumerate(sessions):
        start = sum(len(block) for block in rows[:index])
        target = logits[start : start + session.length, :vocabulary_size].float()
        items.append(_input(session, target))
    return VerifyExample(_with_strides(logits, draw(st.booleans())), tuple(items), vocabulary_size)


def _logits(session: _Session, width: int, contrast: float) -> Tensor:
    generator = torch.Generator().manual_seed(session.seed)
    logits = torch.randn((session.length + 1, width), generator=generator) * contrast
    if session.seed % 7 == 0:  # some tokens masked by the model itself
        logits[torch.rand(logits.shape, generator=generator) < 0.3] = -torch.inf
        logits[:, 0] = 0.0
    if session.seed % 5 == 1:
        fault = (torch.nan, torch.inf, -torch.inf)[session.seed % 3]
        logits[session.seed % len(logits), :: 1 if fault == -torch.inf else width] = fault
    return logits


def _with_strides(logits: Tensor, strided: bool) -> Tensor:
    if not strided:
        return logits
    wide = torch.zeros((2 * logits.shape[0], 2 * logits.shape[1] + 1), dtype=logits.dtype)
    view = wide[::2, 1::2]
    view.copy_(logits)
    return view


def _input(session: _Session, target: Tensor) -> VerifyInput:
    """Tokens drawn from rows that are more or less like the target's law at temperature 1."""
    generator = torch.Generator().manual_seed(session.seed + 1)
    nearness = {"near": 0.7, "far": 0.0, "target": 1.0}.get(session.rows, 0.9)
    noise = torch.randn(target.shape, generator=generator)
    near = torch.softmax(nearness * target.nan_to_num(0, 0, -20) + (1 - nearness) * 2 * noise, dim=-1)
    tokens = torch.multinomial(near, 1, generator=generator)[:, 0].tolist() if session.length else []
    rows: list[RowArrays] = []
    if session.rows != "none" and session.rule is not Rule.COUPLED and not session.sampling.greedy:
        rows = [_row(probs, token, session) for probs, token in zip(near, tokens, strict=True)]
    seen = torch.randint(0, 6, (5,), generator=generator).tolist()
    counts = dict(Counter(token for token in seen if token < near.shape[-1]))
    return VerifyInput(
        session.block_start, tokens, rows, session.sampling, session.rule, session.seed * 2**31 + 5, counts
    )


def _row(probs: Tensor, token: int, session: _Session) -> RowArrays:
    if session.rows == "one_hot":
        return np.array([token], dtype=np.uint32), np.array([ROW_TOTAL], dtype=np.uint32)
    limit = 1 + session.seed % 9 if session.rows == "near" else len(probs)
    made = make_rows(probs[None].log(), torch.tensor([0.995]), torch.tensor([limit]))
    ids, weights = made.ids[0].tolist(), made.weights[0].tolist()
    entries = {i: w for i, w in zip(ids, weights, strict=True) if w > 0}
    if token not in entries:  # the token must be one the row could have given
        entries[token] = entries.pop(next(iter(entries)))
    ordered = sorted(entries.items())
    return (
        np.array([i for i, _ in ordered], dtype=np.uint32),
        np.array([w for _, w in ordered], dtype=np.uint32),
    )
