"""A compiler adds floats up in an order of its own, form by form: no outcome may depend on it.

The interpreter has one order for every form, so here each sum of floats is put into an order drawn at random.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from compiled_verify import DEVICE, SLOW_WAY, SMALL, compiled_draft, compiled_verify
from triton.runtime.interpreter import ReduceOps, ScanOps

from specmesh.kernels.compiled.forms import Tuning
from specmesh.kernels.compiled.reject import of_tile, ratio_of
from specmesh.kernels.compiled.sums import share_units
from specmesh.kernels.inputs import DraftInput, VerifyInput
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.types import Rule, Sampling

interpreted = pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU's compiler takes no order that is asked of it")
LENGTH, SIZE = 1, 150
SAMPLINGS = {
    "plain": Sampling(temperature=0.7),
    "penalised": Sampling(temperature=1.3, frequency_penalty=0.3, logit_bias=((5, 1.0), (130, -2.0))),
    "top_p": Sampling(top_p=0.8),
    "both": Sampling(top_p=0.9, top_k=60, presence_penalty=0.2),
    "min_p": Sampling(min_p=0.02),
}
WAYS = {
    "usual": Tuning(),
    "many": replace(SMALL, few_candidates=2, most_candidates=256),
    "whole-rows": SLOW_WAY,
}


class RandomOrder:
    """The interpreter's sums of floats, in any order; `summed` counts them."""

    def __init__(self) -> None:
        self.summed = 0
        self.random = np.random.default_rng(0)

    def sum(self, ops: ReduceOps, values: tl.tensor) -> tl.tensor:
        data = values.handle.data
        if not np.issubdtype(data.dtype, np.floating):
            return ops.to_tensor(np.sum(data, axis=ops.axis, keepdims=ops.keep_dims), values.dtype)
        self.summed += 1
        # One after the other, where NumPy's own sum goes by pairs and rounds less.
        one_by_one = self.random.permuted(data, axis=ops.axis).cumsum(axis=ops.axis, dtype=data.dtype)
        total = np.take(one_by_one, [-1], axis=ops.axis)
        return ops.to_tensor(total if ops.keep_dims else total.squeeze(ops.axis), values.dtype)

    def no_scan(self, ops: ScanOps, values: tl.tensor) -> list[tl.tensor]:
        assert not np.issubdtype(values.handle.data.dtype, np.floating), "a scan of floats has an order, too"
        return [ops.to_tensor(np.cumsum(values.handle.data, axis=ops.axis), values.dtype)]


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Iterator[RandomOrder]:
    """The interpreter has no seam for this."""
    order = RandomOrder()
    monkeypatch.setattr(ReduceOps, "sum", lambda ops, values: order.sum(ops, values))
    monkeypatch.setattr(ScanOps, "cumsum", lambda ops, values: order.no_scan(ops, values))
    yield order
    assert order.summed, "sums do not come through here"


def logits_of(rows: int) -> torch.Tensor:
    return 2 * torch.randn((rows, SIZE), generator=torch.Generator().manual_seed(5))


@interpreted
@pytest.mark.parametrize(
    ("sampling", "way"),
    [*product(SAMPLINGS, ["usual"]), ("penalised", "many"), ("both", "many"), ("top_p", "whole-rows")],
)
def test_no_outcome_of_verify_depends_on_the_order_of_a_sum(order: RandomOrder, sampling: str, way: str) -> None:
    """Log-probabilities to the bit, as they show the last one of every sum."""
    logits = logits_of(LENGTH + 1)
    draft = (np.arange(0, 90, 3, dtype=np.uint32), np.full(30, ROW_TOTAL // 30, dtype=np.uint32))
    draft[1][0] += ROW_TOTAL % 30
    likely = [int(row[::3][:30].argmax()) * 3 for row in logits[:LENGTH]]
    seen = set()
    for seed in range(3):
        order.random = np.random.default_rng(seed)
        items = [
            VerifyInput(9, likely, [draft] * LENGTH, SAMPLINGS[sampling], Rule.BLOCK, 3, {4: 2}),
            VerifyInput(9, likely, [], SAMPLINGS[sampling], Rule.COUPLED, 4, {4: 2}),
        ]
        outcomes = compiled_verify(logits.repeat(2, 1), items, vocabulary_size=SIZE, num_top=[0, 0], tuning=WAYS[way])
        seen.add(tuple((o.num_accepted, o.next_token, o.finite, o.logprobs) for o in outcomes))
    assert len(seen) == 1


@interpreted
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_no_draft_depends_on_the_order_of_a_sum(order: RandomOrder, sampling: str) -> None:
    item = DraftInput(20, 1, SAMPLINGS[sampling], Rule.BLOCK, 7, {4: 2}, 128, 0.995)
    seen = set()
    for seed in range(3):
        order.random = np.random.default_rng(seed)
        token = compiled_draft(logits_of(1), [item], SIZE)[0]
        seen.add((token.token_id, token.row, token.logprob))
    assert len(seen) == 1


@triton.jit
def units_kernel(shares, units, SIZE: tl.constexpr):  # noqa: ANN001, ANN201, N803
    tl.store(units, share_units(tl.load(shares + tl.arange(0, SIZE)), SIZE))


@pytest.mark.parametrize("size", [32, 128, 4096])
def test_shares_are_summed_as_if_each_were_an_integer(size: int) -> None:
    """Exactly, so which of them are summed by themselves changes nothing; the most there can be among them."""
    generator = torch.Generator().manual_seed(size)
    whole = torch.ones(size)
    spread = torch.exp(-30 * torch.rand(size, generator=generator))
    for shares in (whole, whole - 2.0**-24, spread, torch.zeros(size)):
        units = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        units_kernel[(1,)](shares.to(DEVICE), units, SIZE=size)
        assert int(units) == int(np.rint(shares.double().numpy() * 2.0**39).sum())


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_a_share_that_is_no_number_shows_in_the_sum(fault: float) -> None:
    for faulty in (slice(70, 71), slice(None)):
        shares = torch.full((4096,), 0.5)
        shares[faulty] = fault
        units = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        with np.errstate(invalid="ignore"):
            units_kernel[(1,)](shares.to(DEVICE), units, SIZE=4096)
        assert int(units) >= 2**53


@triton.jit
def row_kernel(shares, drafted, inverse, units, ROWS: tl.constexpr, SIZE: tl.constexpr):  # noqa: ANN001, ANN201, N803
    rows = tl.arange(0, ROWS)
    ids = tl.arange(0, SIZE)[None, :] + rows[:, None] * 0
    place = rows[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tile = (ids, tl.load(shares + place), tl.load(drafted + place), tl.load(inverse + place))
    mass, inside, best, _ = of_tile(tile, tl.full((ROWS,), 1.0, tl.float32))
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
