"""`verify` in its compiled form: on a CUDA GPU where there is one, else on the CPU under Triton's interpreter."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume
from law_literal import Margin
from law_literal import verify as literal
from torch import Tensor
from verify_batches import VerifyExample

from specmesh.kernels import ops
from specmesh.kernels.compiled.draft_plan import DraftTuning
from specmesh.kernels.compiled.draft_step import draft_step
from specmesh.kernels.compiled.forms import Tuning
from specmesh.kernels.compiled.verify import run, verify
from specmesh.kernels.inputs import DraftedToken, DraftInput, VerifyInput, VerifyOutcome
from specmesh.kernels.reference.batch import VerifyBatch, VerifyResult
from specmesh.kernels.reference.philox import key_integers
from specmesh.runtime.types import Rule, Sampling

NARROW = 3e-5
"""Comparisons closer than this are decided by rounding: such examples are left out."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = Tuning(
    chunk=32,
    draw_tile=32,
    draw_programs=3,
    row_tile=16,
    long_row_tile=16,
    group=8,
    few_candidates=16,
    most_candidates=32,
)
"""Cut so small that rows of a hundred tokens have several chunks, tiles, groups, and rows longer than a tile."""
SLOW_WAY = replace(SMALL, few_candidates=2, most_candidates=2)
"""Hardly any candidate fits, so the edge is searched over whole rows."""
DRAFT_TUNING = (SMALL, DraftTuning(chunk=32, group=8))


def compiled_verify(
    logits: Tensor,
    inputs: Sequence[VerifyInput],
    *,
    vocabulary_size: int,
    num_top: Sequence[int | None] | None = None,
    tuning: Tuning = SMALL,
) -> list[VerifyOutcome]:
    """The interpreter is NumPy, which warns of what a GPU does in silence: infinities less infinities, and the like."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return verify(logits.to(DEVICE), inputs, vocabulary_size=vocabulary_size, num_top=num_top, tuning=tuning)


def check_with_literal_and_reference(example: VerifyExample) -> None:
    """Gate 4 on one batch: decisions of the literal rules, log-probabilities of the reference."""
    margin = Margin()
    expected = [literal(example.rows_of(b), item, margin) for b, item in enumerate(example.inputs)]
    assume(margin.narrowest > NARROW)
    size, asked = example.vocabulary_size, [0] * len(example.inputs)
    outcomes = compiled_verify(example.logits, example.inputs, vocabulary_size=size, num_top=asked)
    assert [(o.num_accepted, o.next_token) if o.finite else None for o in outcomes] == expected
    reference = ops.verify(example.logits, example.inputs, vocabulary_size=size, num_top=asked)
    for got, wanted in zip(outcomes, reference, strict=True):
        if wanted.finite:
            assert [t.logprob for t in got.logprobs] == pytest.approx([t.logprob for t in wanted.logprobs], abs=1e-4)


def compiled_batch(batch: VerifyBatch, sampling: Sampling) -> VerifyResult:
    """`verify_batch` by the compiled form at its own tile sizes, for sessions that all sample alike."""
    rule = Rule.COUPLED if batch.coupled.any() else Rule.BLOCK if batch.block_rule.any() else Rule.TOKEN
    lengths, first = batch.lengths.tolist(), (batch.row_starts[:-1] - torch.arange(len(batch.key))).tolist()
    tokens, offsets = batch.draft_token_ids.tolist(), batch.draft_rows.offsets.tolist()
    ids, weights = (part.numpy().astype(np.uint32) for part in (batch.draft_rows.ids, batch.draft_rows.values))
    spread = batch.law.counts.offsets.tolist()
    seen = list(zip(batch.law.counts.ids.tolist(), batch.law.counts.values.tolist(), strict=True))
    items = []
    for b, (start, key) in enumerate(zip(batch.block_start.tolist(), key_integers(batch.key), strict=True)):
        span = range(first[b], first[b] + lengths[b])
        bounds = [(offsets[i], offsets[i + 1]) for i in span]
        rows = [(ids[low:high], weights[low:high]) for low, high in bounds]
        counts = {token: count for token, count in seen[spread[b] : spread[b + 1]] if count}
        bare = rule is Rule.COUPLED or any(low == high for low, high in bounds)
        own = tokens[span.start : span.stop]
        items.append(VerifyInput(start, own, [] if bare else rows, sampling, rule, key, counts))
    parts = []
    for begin in range(0, len(items), 4096):  # a launch takes 65,535 rows
        some = items[begin : begin + 4096]
        low, high = int(batch.row_starts[begin]), int(batch.row_starts[begin + len(some)])
        parts.append(run(batch.logits[low:high].to(DEVICE), some, batch.vocabulary_size)[1])
    accepted, token = (
        torch.from_numpy(np.concatenate(part).astype(np.int64))
        for part in ([part.num_accepted for part in parts], [part.next_token for part in parts])
    )
    return VerifyResult(accepted, token, torch.from_numpy(np.concatenate([part.finite for part in parts])))


class Alike:
    """`ops.verify` and the compiled form at once: the reference's outcomes, once the kernel's are seen to be the same.

    On a GPU every session is compared; under the interpreter `sessions` sessions of the first `left` calls of a test.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A test begins; it may ask for more."""
        self.left = self.sessions = 2

    def verify(
        self,
        logits: Tensor,
        inputs: Sequence[VerifyInput],
        *,
        vocabulary_size: int,
        num_top: Sequence[int | None] | None = None,
    ) -> list[VerifyOutcome]:
        wanted = ops.verify(logits, inputs, vocabulary_size=vocabulary_size, num_top=num_top)
        if not inputs or not self._turn():
            return wanted
        number = len(inputs) if DEVICE.type == "cuda" else self.sessions
        some = inputs[:number]
        rows = sum(len(item.draft_token_ids) + 1 for item in some)
        got = compiled_verify(
            logits[:rows], some, vocabulary_size=vocabulary_size, num_top=num_top and num_top[:number]
        )
        for one, other in zip(got, wanted, strict=False):
            assert one.finite == other.finite
            if other.finite:
                assert (one.num_accepted, one.next_token) == (other.num_accepted, other.next_token)
                assert [x.logprob for x in one.logprobs] == pytest.approx([x.logprob for x in other.logprobs], abs=1e-5)
                assert [[t for t, _ in x.top] for x in one.logprobs] == [[t for t, _ in x.top] for x in other.logprobs]
        return wanted

    def draft_step(
        self, logits: Tensor, inputs: Sequence[DraftInput], *, vocabulary_size: int, token_map: Tensor | None = None
    ) -> list[DraftedToken]:
        wanted = ops.draft_step(logits, inputs, vocabulary_size=vocabulary_size, token_map=token_map)
        if not inputs or not self._turn():
            return wanted
        number = len(inputs) if DEVICE.type == "cuda" else self.sessions
        got = compiled_draft(logits[:number], inputs[:number], vocabulary_size, token_map)
        same_drafts(got, wanted[:number])
        return wanted

    def _turn(self) -> bool:
        self.left -= 1
        return DEVICE.type == "cuda" or self.left >= 0


ALIKE = Alike()
"""Of the test that runs."""


def compiled_draft(
    logits: Tensor, items: Sequence[DraftInput], vocabulary_size: int, token_map: Tensor | None = None
) -> list[DraftedToken]:
    """As `compiled_verify`."""
    head = None if token_map is None else token_map.to(DEVICE)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return draft_step(
            logits.to(DEVICE), items, vocabulary_size=vocabulary_size, token_map=head, tuning=DRAFT_TUNING
        )


def same_drafts(got: Sequence[DraftedToken], wanted: Sequence[DraftedToken]) -> None:
    """Rows and tokens to the bit."""
    assert [token.finite for token in got] == [token.finite for token in wanted]
    finite = [pair for pair in zip(got, wanted, strict=True) if pair[1].finite]
    assert [(one.token_id, one.row) for one, _ in finite] == [(other.token_id, other.row) for _, other in finite]
    assert [one.logprob for one, _ in finite] == pytest.approx([other.logprob for _, other in finite], abs=1e-4)
