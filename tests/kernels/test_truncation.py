"""Keeping the fewest largest tokens that reach a mass: short rows at once, long rows one by one, the same."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specmesh.kernels.reference.truncation import LONG_ROW, _keep_row, keep_largest


def random_scores(seed: int, rows: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    contrast = torch.arange(rows)[:, None] * 1.5 + 0.05
    return torch.randn((rows, size), generator=generator) * contrast


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, -math.inf]), min_size=1, max_size=12).filter(
        lambda values: max(values) > -math.inf
    ),
    limit=st.integers(1, 14),
)
def test_a_limit_is_a_stable_sort_cut_off(values: list[float], limit: int) -> None:
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))[:limit]
    scores = torch.tensor(values)
    dense = keep_largest(scores[None], torch.tensor([limit]), torch.ones(1))[0]
    assert dense.nonzero()[:, 0].tolist() == sorted(order)
    assert _keep_row(scores, limit, 1.0).equal(dense)


@pytest.mark.parametrize("size", [3, 40, LONG_ROW, LONG_ROW + 1, 7001])
@pytest.mark.parametrize("mass", [1e-6, 0.05, 0.6, 0.98, 0.99999])
def test_the_mass_kept_is_the_least_that_reaches_the_share(size: int, mass: float) -> None:
    scores = random_scores(size, 6, size)
    limit = torch.tensor([size, 1, 3, 200, 10**7, size - 1])
    keep = keep_largest(scores, limit, torch.full((6,), mass))
    for i in range(6):
        probs = np.sort(np.exp(scores[i].double().numpy()))[::-1]
        limited = probs[: int(limit[i])]
        total = np.cumsum(limited) / limited.sum()
        number = int(keep[i].sum())
        assert number == len(limited) or total[number - 1] >= mass - 1e-6
        assert number == 1 or total[number - 2] < mass + 1e-6
        assert scores[i][keep[i]].min() >= scores[i][~keep[i]].max(dim=0).values if number < size else True


def test_short_rows_one_by_one_are_as_all_at_once() -> None:
    scores = random_scores(1, 40, 60).round(decimals=1)
    limit = torch.arange(40) * 2 + 1
    for mass in (0.31, 0.87, 1.0):
        dense = keep_largest(scores, limit, torch.full((40,), mass))
        for i in range(40):
            assert _keep_row(scores[i], int(limit[i]), np.float32(mass)).equal(dense[i])


def test_equal_masses_are_counted_exactly() -> None:
    for size in (4, 2048):
        scores = torch.full((1, size), math.log(1 / size))
        keep = keep_largest(scores, torch.tensor([size]), torch.tensor([0.5]))[0]
        assert keep.nonzero()[:, 0].tolist() == list(range(size // 2))
