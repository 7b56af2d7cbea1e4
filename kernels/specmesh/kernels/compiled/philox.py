"""Philox4x32-10 and what is made of its words: the integers and the noise of `specmesh.kernels.reference.philox`."""
# Triton's functions take tensors and numbers alike; its decorator has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl

_UNIT_24 = tl.constexpr(2.0**-24)
_UNIT_32 = tl.constexpr(2.0**-32)
_BOUND_AT_0 = tl.constexpr(32 + 1e-4)
"""With room for what rounding may take."""
_NATIVE = tl.constexpr(not triton.knobs.runtime.interpret)
_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def philox(key_low, key_high, c0, c1, c2, c3):
    """Four uint32 words; the arguments are uint32 and broadcast against each other.

    What is the same for all lanes stays a number for as long as the rounds allow.
    """
    k0 = key_low
    k1 = key_high
    for _ in tl.static_range(10):
        # One wide product gives both halves in one instruction.
        product0 = c0.to(tl.uint64) * 0xD2511F53
        product1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (product1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = product1.to(tl.uint32)
        c2 = (product0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = product0.to(tl.uint32)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def word_of_token(key_low, key_high, block_start, offset, purpose, token_ids):
    """The word of each token id: output `id & 3` at lane `id >> 2`."""
    ids = token_ids.to(tl.uint32)
    w0, w1, w2, w3 = philox(key_low, key_high, block_start, offset, purpose, ids >> 2)
    which = ids & 3
    return tl.where(which < 2, tl.where(which == 0, w0, w1), tl.where(which == 2, w2, w3))


@triton.jit
def words_of_quads(key_low, key_high, block_start, offset, purpose, lanes):
    """Words `[N, 4]` of the ids 4 * lane + 0..3."""
    w0, w1, w2, w3 = philox(key_low, key_high, block_start, offset, purpose, lanes)
    pairs = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return tl.reshape(pairs, (w0.shape[0], 4))


@triton.jit
def in_order(values):
    """Integers ordered as the floats are; a NaN comes out somewhere."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def uniform_of(words):
    """u = (x >> 8) / 2^24."""
    return (words >> 8).to(tl.float32) * _UNIT_24


@triton.jit
def exponential_of(words):
    """-log1p(-v) with v = (x + 0.5) / 2^32, at most 1 - 2^-24: what the noise is minus the log of.

    log1p(-v) as log(u) + (rounding error of u = 1 - v) / u: the error is exact, and u is 1 where v is tiny.
    """
    v = tl.minimum((words.to(tl.float32) + 0.5) * _UNIT_32, _BELOW_ONE)
    u = 1.0 - v
    lost = (1.0 - u) - v
    return -(tl.log(u) + lost / u)


@triton.jit
def noise_of(words):
    """Gumbel noise -log(-log1p(-v))."""
    return -tl.log(exponential_of(words))


@triton.jit
def log2_quickly(x):
    """log2 to about 1e-6."""
    if _NATIVE:
        result = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = tl.log2(x)
    return result


@triton.jit
def noise_bound(words):
    """At least the noise of these words in units of ln 2; too much by v / 2 of one where v, the chance to be larger, is
    small, and never by 4.

    noise = -ln(-ln(1 - v)) <= -ln v.
    """
    return _BOUND_AT_0 - log2_quickly(words.to(tl.float32))


@triton.jit
def packed(value, token):
    """int64 whose maximum is the largest value and, of equal ones, the lowest token."""
    return (in_order(value).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)
