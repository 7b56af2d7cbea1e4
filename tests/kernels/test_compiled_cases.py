"""Small cases that only numbers fed by hand, or the kernel alone, can show."""

import warnings
from math import log

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from compiled_verify import ALIKE, DEVICE, compiled_verify

from specmesh.kernels.compiled.decide import accepted_by_block, accepted_by_token, reach_of
from specmesh.kernels.compiled.reject import of_tile, ratio_of
from specmesh.kernels.inputs import VerifyInput
from specmesh.kernels.reference.philox import key_tensor, philox, uniform_from_words
from specmesh.runtime.contract import ROW_TOTAL, Purpose
from specmesh.runtime.types import Rule, Sampling


@triton.jit
def decide_kernel(ratio, u, row_mass, inside, accepted, length, LP: tl.constexpr):  # noqa: ANN001, ANN201, N803
    places = tl.arange(0, LP)
    own = tl.load(u + places, mask=places < length, other=1.0)
    # BLOCK asks about i tokens with the uniform of the last of them.
    before = tl.load(u + places - 1, mask=(places >= 1) & (places <= length), other=1.0)
    ratios = tl.load(ratio + places, mask=places < length, other=0.0)
    reach = reach_of(ratios, places, LP)
    mass = tl.load(row_mass + places, mask=places < length, other=0.0)
    within = tl.load(inside + places, mask=places < length, other=0.0)
    tl.store(accepted, accepted_by_token(ratios, own, places, length, LP))
    tl.store(accepted + 1, accepted_by_block(reach, mass, within, before, places, length))


def decided(ratio: list[float], u: list[float], row_mass: list[float], inside: list[float]) -> list[int]:
    """Accepted under TOKEN and under BLOCK."""
    numbers = [torch.tensor(values, device=DEVICE) for values in (ratio, u, row_mass, inside)]
    accepted = torch.full((2,), -1, dtype=torch.int32, device=DEVICE)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        decide_kernel[(1,)](*numbers, accepted, len(ratio), LP=8)
    return accepted.tolist()  # type: ignore[no-any-return]


def test_a_token_the_target_never_says_is_rejected_even_at_u_0() -> None:
    """C5: T / D = 0 and u = 0; and u equal to the ratio is a rejection too."""
    assert decided([0.0], [0.0], [1.0], [0.0]) == [0, 0]
    assert decided([0.25], [0.25], [1.0], [0.0]) == [0, 0]
    assert decided([0.25], [0.2499], [1.0], [0.0]) == [1, 1]


def test_token_stops_at_the_first_no_and_block_at_the_last_yes() -> None:
    """C7: tests [yes, no, yes, yes]: accepted = 1 under TOKEN, 4 under BLOCK. T = [.5, .5], D one-hot on 0."""
    reach = [1.0, 0.5, 0.25, 0.125]
    inside = [max(p * 0.5 - 1.0, 0.0) for p in reach]
    assert decided([0.5] * 4, [0.1, 0.9, 0.1, 0.1], [0.5] * 4, inside)[0] == 1
    assert decided([0.5] * 4, [0.1, 0.9, 0.01, 0.01], [0.5] * 4, inside)[1] == 4


def test_zero_over_zero_counts_as_one_and_a_nan_keeps_nothing() -> None:
    """C3: T = D."""
    assert decided([1.0] * 3, [0.9, 0.9, 1.0], [1.0] * 3, [0.0] * 3) == [2, 2]
    assert decided([1.0, torch.nan, 1.0], [0.0] * 3, [1.0] * 3, [0.0] * 3) == [1, 1]


@triton.jit
def row_kernel(shares, drafted, inverse, units, ROWS: tl.constexpr, SIZE: tl.constexpr):  # noqa: ANN001, ANN201, N803
    rows = tl.arange(0, ROWS)
    ids = tl.arange(0, SIZE)[None, :] + rows[:, None] * 0
    place = rows[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tile = (ids, tl.load(shares + place), tl.load(drafted + place), tl.load(inverse + place))
    mass, inside, best = of_tile(tile, tl.full((ROWS,), 1.0, tl.float32), True)
    tl.store(units + 3 * rows, mass)
    tl.store(units + 3 * rows + 1, inside)
    tl.store(units + 3 * rows + 2, ratio_of(best).to(tl.int32, bitcast=True).to(tl.int64))


def test_what_a_row_weighs_is_the_same_in_any_order_and_any_tile() -> None:
    """A neighbour's longer row or block makes tiles larger; that must not change a bit of what is accepted."""
    generator = torch.Generator().manual_seed(3)
    shares, drafted = torch.softmax(4 * torch.randn((2, 60), generator=generator), dim=1)
    inverse = torch.rand(60, generator=generator)
    seen = set()
    for rows, size in ((1, 64), (8, 64), (8, 128), (32, 128)):
        for seed in range(3):
            places = torch.randperm(size, generator=torch.Generator().manual_seed(seed))[:60]
            tiles = torch.zeros(3, rows, size)
            tiles[0, :, places], tiles[1, :, places], tiles[2, :, places] = shares, drafted, inverse
            units = torch.zeros((rows, 3), dtype=torch.int64, device=DEVICE)
            row_kernel[(1,)](*tiles.to(DEVICE), units, ROWS=rows, SIZE=size)
            seen.update(map(tuple, units.tolist()))
    (mass, inside, best), *others = seen
    assert not others
    assert mass / 2**45 == pytest.approx(1.0, abs=1e-6)
    assert inside / 2**45 == pytest.approx(float((shares - drafted).clamp(min=0).sum()), abs=1e-6)
    assert best == int(((shares - drafted).clamp(min=0) * inverse).max().view(torch.int32))


@pytest.mark.parametrize(
    ("probs", "top_p", "law"),
    [
        ([0.3, 0.1, 0.1, 0.5], 0.79, {0: 0.375, 3: 0.625}),
        ([0.25] * 4, 0.5, {0: 0.5, 1: 0.5}),
        ([0.3, 0.1, 0.1, 0.5], 1e-6, {3: 1.0}),
    ],
)
@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.COUPLED])
def test_top_p_keeps_the_smallest_set_that_reaches_it(
    rule: Rule, probs: list[float], top_p: float, law: dict[int, float]
) -> None:
    """C8."""
    items = [VerifyInput(3, [], [], Sampling(top_p=top_p), rule, key) for key in range(8)]
    logits = torch.tensor([probs]).log().repeat(8, 1)
    outcomes = compiled_verify(logits, items, vocabulary_size=4, num_top=[0] * 8)
    assert {outcome.next_token for outcome in outcomes} == set(law)
    for outcome in outcomes:
        assert outcome.logprobs[0].logprob == pytest.approx(log(law[outcome.next_token]), abs=1e-5)


def test_temperatures_of_a_batch_keep_apart() -> None:
    """C1."""
    temperatures = (0.5, 1.7, 1e-40) * 3
    items = [VerifyInput(3, [], [], Sampling(temperature=t), Rule.BLOCK, key) for key, t in enumerate(temperatures)]
    row = torch.tensor([2.0, 1.0, 0.0, -1.0])
    outcomes = compiled_verify(row.repeat(9, 1), items, vocabulary_size=4, num_top=[0] * 9)
    assert any(outcome.next_token for outcome in outcomes), "the largest is as likely in units of itself at any of them"
    for temperature, outcome in zip(temperatures, outcomes, strict=True):
        wanted = torch.log_softmax((row - row.max()) / max(temperature, 1e-30), dim=0)[outcome.next_token]
        assert outcome.logprobs[0].logprob == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("rule", [Rule.BLOCK, Rule.TOKEN])
def test_temperature_is_in_what_is_accepted(rule: Rule) -> None:
    """C1: T(0) = .865 at 0.5 and .644 at 1; uniforms between the two tell which it was."""
    keys = range(200)
    uniforms = uniform_from_words(philox(key_tensor(keys), (3, 0, int(Purpose.ACCEPT), 0))[0]).tolist()
    between = [key for key in keys if 0.66 < uniforms[key] < 0.85][:2]
    items = [VerifyInput(3, [0], [], Sampling(temperature=0.5), rule, key) for key in between]
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).repeat(4, 1)
    assert [outcome.num_accepted for outcome in ALIKE.verify(logits, items, vocabulary_size=4)] == [1, 1]


def test_numbers_of_a_block_are_keyed_by_where_it_starts() -> None:
    """C18: the same position met in another block has other numbers, as in the reference."""
    ALIKE.left = 3
    draft = (
        np.arange(3, dtype=np.uint32),
        np.array([ROW_TOTAL - 2 * 5_000_000, 5_000_000, 5_000_000], dtype=np.uint32),
    )
    logits = torch.tensor([0.2, 0.5, 0.3]).log().repeat(8, 1)
    seen = []
    for start in (20, 21, 22):
        items = [VerifyInput(start, [0, 1, 2], [draft] * 3, Sampling(), Rule.BLOCK, key) for key in (7, 8)]
        seen.append(ALIKE.verify(logits, items, vocabulary_size=3))
    assert seen[0] != seen[1] or seen[1] != seen[2]
