"""The ops that services call: plain objects in, plain objects out.

They run in their compiled form where the logits are on a CUDA device and Triton is there, else in the torch reference
on the CPU. Importing this needs neither.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specmesh.kernels.inputs import DraftedToken, DraftInput, VerifyInput, VerifyOutcome
from specmesh.kernels.packing import check_shapes, pack_draft, pack_verify
from specmesh.kernels.reference.batch import DraftBatch, DraftRows
from specmesh.kernels.reference.draft_step import draft_batch, score_batch
from specmesh.kernels.reference.greedy import is_plain_greedy, verify_greedy
from specmesh.kernels.reference.logprobs import emitted_logprobs
from specmesh.kernels.reference.verify import verify_batch
from specmesh.runtime.rows import encode_row

if TYPE_CHECKING:
    from specmesh.kernels.compiled.ahead import CompileAhead

__all__ = [
    "Distribution",
    "DraftInput",
    "DraftedToken",
    "VerifyInput",
    "VerifyOutcome",
    "compile_draft_ahead",
    "compile_verify_ahead",
    "draft_step",
    "sample_sparse",
    "score_sparse",
    "score_tokens",
    "verify",
]

Distribution = tuple[NDArray[np.integer], NDArray[np.floating]]
"""A sparse distribution: ids strictly ascending, and their probabilities (>= 0, any positive sum)."""


def verify(
    logits: Tensor,
    inputs: Sequence[VerifyInput],
    *,
    vocabulary_size: int,
    num_top: Sequence[int | None] | None = None,
) -> list[VerifyOutcome]:
    """Verify one block per session.

    `logits` `[R, W]` are the target's raw ones (float32, bfloat16 or float16, any strides), one row per drafted token
    and one more, sessions in order; ids from `vocabulary_size` on are padding. `num_top[b]`: None = no
    log-probabilities, n = those of the emitted tokens and of the n likeliest. A session's outcome depends on itself
    alone, bit for bit.
    """
    if not inputs:
        return []
    if _compiled(logits):
        from specmesh.kernels.compiled.verify import verify as compiled_verify

        return compiled_verify(logits, inputs, vocabulary_size=vocabulary_size, num_top=num_top)
    logits = _on_cpu(logits)
    if is_plain_greedy(inputs) and (num_top is None or all(top is None for top in num_top)):
        check_shapes(logits, inputs)
        return verify_greedy(logits, inputs, vocabulary_size)
    batch = pack_verify(logits, inputs, vocabulary_size)
    result = verify_batch(batch)
    logprobs = emitted_logprobs(batch, result, num_top or [None] * len(inputs))
    outcomes = zip(result.num_accepted.tolist(), result.next_token.tolist(), result.finite.tolist(), strict=True)
    return [VerifyOutcome(*outcome, logprobs[b]) for b, outcome in enumerate(outcomes)]


class Ready:
    """What there is to wait for where nothing is compiled."""

    def finish(self) -> None:
        """At once."""


def compile_verify_ahead(logits: Tensor, *, vocabulary_size: int, max_block_length: int) -> "Ready | CompileAhead":
    """Begin to compile all of `verify` that blocks up to this length can need.

    `logits` `[R, W]`, R may be 0: of the type, the width and on the device that they will have. All is there when
    `finish` of what is returned has been; it runs the kernels once and raises what compiling raised.
    """
    if not _compiled(logits):
        return Ready()
    from specmesh.kernels.compiled.ahead import compile_verify
    from specmesh.kernels.compiled.forms import Requests

    return compile_verify(logits, vocabulary_size, Requests(max_block_length))


def compile_draft_ahead(
    logits: Tensor, *, vocabulary_size: int, token_map: Tensor | None = None
) -> "Ready | CompileAhead":
    """The same of `draft_step` and `score_tokens`, which need no bounds."""
    if not _compiled(logits):
        return Ready()
    from specmesh.kernels.compiled.ahead import compile_draft

    return compile_draft(logits, vocabulary_size, token_map)


@cache
def has_triton() -> bool:
    """Whether compiled forms can be had at all on this machine."""
    return find_spec("triton") is not None


def _compiled(logits: Tensor) -> bool:
    return logits.device.type == "cuda" and has_triton()


def _on_cpu(logits: Tensor) -> Tensor:
    """Where the reference works, wherever the model is."""
    return logits if logits.device.type == "cpu" else logits.cpu()


def draft_step(
    logits: Tensor,
    inputs: Sequence[DraftInput],
    *,
    vocabulary_size: int,
    token_map: Tensor | None = None,
) -> list[DraftedToken]:
    """Draft one token per session from raw draft logits `[B, W]` at one position each.

    `token_map` `[W]` int64 ascending: the ids of an output head over a subset of the vocabulary. Where `finite` is
    False nothing was sampled: the block ends before this token.
    """
    if not inputs:
        return []
    if _compiled(logits):
        from specmesh.kernels.compiled.draft_step import draft_step as compiled_draft_step

        return compiled_draft_step(logits, inputs, vocabulary_size=vocabulary_size, token_map=token_map)
    result = draft_batch(_packed_on_cpu(logits, inputs, vocabulary_size, token_map))
    rows: list[bytes | None] = [None] * len(inputs)
    if result.rows is not None:
        for b, row in zip(result.sampled.nonzero()[:, 0].tolist(), encode_rows(result.rows), strict=True):
            rows[b] = row
    fields = zip(result.token_ids.tolist(), rows, result.logprob.tolist(), result.finite.tolist(), strict=True)
    return [DraftedToken(*field) for field in fields]


def score_tokens(
    logits: Tensor,
    inputs: Sequence[DraftInput],
    token_ids: Sequence[int],
    *,
    vocabulary_size: int,
    token_map: Tensor | None = None,
) -> list[tuple[float, bool]]:
    """How a draft would have done on tokens that were emitted, one position per entry; logits as for `draft_step`.

    Per token: ln D in the row as it would have been sent (-inf outside; under COUPLED that of the row another rule
    would get; at temperature 0 the row is one-hot), and whether a deterministic draft would have guessed it
    (temperature 0, COUPLED; False under other rules). Logits that are not finite score -inf.
    """
    if not inputs:
        return []
    if _compiled(logits):
        from specmesh.kernels.compiled.draft_step import score_tokens as compiled_score_tokens

        return compiled_score_tokens(logits, inputs, token_ids, vocabulary_size=vocabulary_size, token_map=token_map)
    batch = _packed_on_cpu(logits, inputs, vocabulary_size, token_map)
    logprob, guessed = score_batch(batch, torch.tensor(list(token_ids), dtype=torch.int64))
    return list(zip(logprob.tolist(), guessed.tolist(), strict=True))


def _packed_on_cpu(
    logits: Tensor, inputs: Sequence[DraftInput], vocabulary_size: int, token_map: Tensor | None
) -> DraftBatch:
    head = None if token_map is None else _on_cpu(token_map)
    return pack_draft(_on_cpu(logits), inputs, vocabulary_size, head)


def sample_sparse(distributions: Sequence[Distribution], inputs: Sequence[DraftInput]) -> list[DraftedToken]:
    """`draft_step` from explicit distributions: the same transform, row and draw."""
    tokens = []
    for distribution, item in zip(distributions, inputs, strict=True):
        logits, token_map = _as_head(distribution)
        size = int(token_map[-1]) + 1
        tokens += draft_step(logits, [item], vocabulary_size=size, token_map=token_map)
    return tokens


def score_sparse(
    distributions: Sequence[Distribution], inputs: Sequence[DraftInput], token_ids: Sequence[int]
) -> list[tuple[float, bool]]:
    """`score_tokens` from explicit distributions."""
    scores = []
    for distribution, item, token in zip(distributions, inputs, token_ids, strict=True):
        logits, token_map = _as_head(distribution)
        size = int(token_map[-1]) + 1
        scores += score_tokens(logits, [item], [token], vocabulary_size=size, token_map=token_map)
    return scores


def _as_head(distribution: Distribution) -> tuple[Tensor, Tensor]:
    """ln of the probabilities as the logits of a head over these ids."""
    ids, probs = (column[distribution[1] > 0] for column in distribution)
    return torch.from_numpy(np.log(probs)).to(torch.float32)[None], torch.from_numpy(ids.astype(np.int64))


def encode_rows(rows: DraftRows) -> list[bytes]:
    """Rows as they go on the wire."""
    sizes = (rows.weights > 0).sum(dim=1).tolist()
    ids, weights = rows.ids.numpy(), rows.weights.numpy()
    return [encode_row(ids[i, :size], weights[i, :size]) for i, size in enumerate(sizes)]
