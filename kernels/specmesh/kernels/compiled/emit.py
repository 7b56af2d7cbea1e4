"""A session's outcome to where the host reads it."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from specmesh.kernels.compiled.fields import ACCEPTED, ALL_FINITE, LENGTH, OUT_FIELDS, TOKENS
from specmesh.kernels.compiled.philox import packed


@triton.jit
def emit_prefix(meta, fields, session, tokens, finite, out, drawn, LP: tl.constexpr):
    """On while the draft guessed the target's `tokens` `[LP]`; returns how many it did."""
    places = tl.arange(0, LP)
    length = tl.load(fields + LENGTH)
    drafted = tl.load(meta + tl.load(fields + TOKENS) + places, mask=places < length, other=-1)
    accepted = tl.min(tl.where(finite & (drafted == tokens), LP, places), 0)
    last = places == accepted
    tl.store(out + session * OUT_FIELDS + ACCEPTED, accepted)
    tl.store(out + session * OUT_FIELDS + ALL_FINITE, tl.sum(tl.where(last, finite.to(tl.int32), 0), 0))
    tl.store(drawn + session, packed(tl.full((), 0.0, tl.float32), tl.sum(tl.where(last, tokens, 0), 0)))
    return accepted
