"""`draft_step` in its compiled form gives the reference's rows and tokens, to the bit."""

import warnings

import numpy as np
import pytest
import torch
from compiled_verify import DEVICE, DRAFT_TUNING, compiled_draft, same_drafts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verify_batches import samplings

from specmesh.kernels import ops
from specmesh.kernels.compiled.draft_plan import DraftCapacity, DraftPlan, pack_rows
from specmesh.kernels.compiled.draft_step import score_tokens
from specmesh.kernels.inputs import DraftInput
from specmesh.kernels.reference.rows import Cuts, rows_of, units_of
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.types import Rule, Sampling


def ask(sampling: Sampling = Sampling(), rule: Rule = Rule.BLOCK, **other: float) -> DraftInput:  # noqa: B008 - frozen
    fields = {"block_start": 20, "offset": 1, "key": 7, "token_counts": {}, "max_row": 128, "row_mass": 0.995}
    return DraftInput(sampling=sampling, rule=rule, **(fields | other))  # type: ignore[arg-type]


ITEMS = st.builds(
    DraftInput,
    block_start=st.sampled_from([0, 77, 2**31, 2**32 - 9]),
    offset=st.sampled_from([0, 3]),
    sampling=samplings(),
    rule=st.sampled_from(list(Rule)),
    key=st.integers(0, 2**64 - 1),
    token_counts=st.sampled_from([{0: 2, 3: 1}, {}]),
    max_row=st.sampled_from([1, 2, 33, 128, 10**6]),
    row_mass=st.sampled_from([0.3, 0.995, 1.0]),
)


@pytest.mark.timeout(600)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    items=st.lists(ITEMS, min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([1, 2, 5, 70, 300]),
    padding=st.sampled_from([0, 7]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    mapped=st.booleans(),
)
def test_rows_tokens_and_scores_are_the_references(
    items: list[DraftInput], seed: int, size: int, padding: int, dtype: torch.dtype, mapped: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((len(items), size + padding), generator=generator) * (0.5, 2.0, 6.0)[seed % 3]
    if seed % 4 == 1:  # many ties
        logits = logits.round()
    if seed % 5 == 1:
        logits[0, 0] = (torch.nan, torch.inf, -torch.inf)[seed % 3]
    logits = logits.to(dtype)
    token_map, vocabulary_size = None, size
    if mapped:
        token_map = torch.randperm(3 * (size + padding), generator=generator)[: size + padding].sort().values
        vocabulary_size = int(token_map[size - 1]) + 1
    wanted = ops.draft_step(logits, items, vocabulary_size=vocabulary_size, token_map=token_map)
    same_drafts(compiled_draft(logits, items, vocabulary_size, token_map), wanted)
    asked = [token.token_id for token in wanted]
    options = {"vocabulary_size": vocabulary_size}
    scores = ops.score_tokens(logits, items, asked, token_map=token_map, **options)
    head = None if token_map is None else token_map.to(DEVICE)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        got = score_tokens(logits.to(DEVICE), items, asked, token_map=head, tuning=DRAFT_TUNING, **options)
    assert [guessed for _, guessed in got] == [guessed for _, guessed in scores]
    assert [score for score, _ in got] == pytest.approx([score for score, _ in scores], abs=1e-6)


@pytest.mark.parametrize("max_row", [600, 7])
def test_more_candidates_than_a_tile_are_searched_by_bisection(max_row: int) -> None:
    """Ties on the edge, and more ids than one tile on both sides of it."""
    logits = (torch.randn((2, 700), generator=torch.Generator().manual_seed(3)) * 2).round(decimals=1)
    items = [
        ask(Sampling(temperature=1.7, top_p=0.97), max_row=max_row, row_mass=0.9),
        ask(Sampling(min_p=1e-4, top_k=500), max_row=max_row, row_mass=1.0, key=2**64 - 1),
    ]
    same_drafts(compiled_draft(logits, items, 700), ops.draft_step(logits, items, vocabulary_size=700))


def test_a_plan_launches_what_was_loaded_as_often_as_it_is_asked() -> None:
    """What a CUDA graph replays: the same buffers, other logits."""
    items = [ask(key=b) for b in range(2)]
    numbers, form = pack_rows(items, 50, 2)
    plan = DraftPlan(DEVICE, 50, DraftCapacity(2, form.room, len(numbers)), tuning=DRAFT_TUNING[1])
    form = plan.load(items)
    for seed in (1, 2):
        logits = torch.randn((2, 50), generator=torch.Generator().manual_seed(seed))
        plan.launch(logits.to(DEVICE), form)
        wanted = ops.draft_step(logits, items, vocabulary_size=50)
        assert plan.fetch(form).token_ids.tolist() == [token.token_id for token in wanted]


def test_units_are_2_to_the_45_times_exp_and_never_0_above_the_least() -> None:
    cooled = np.linspace(-110, 0, 20_001, dtype=np.float32)
    units = units_of(cooled)
    assert units[-1] == 2**45
    assert (units[cooled <= -104] == 0).all()
    assert (units[cooled > -104] >= 1).all()
    large = cooled > -15
    exact = np.exp(cooled[large].astype(np.float64)) * 2.0**45
    assert np.abs(units[large] / exact - 1).max() < 3e-7


@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_long_rows_are_cut_as_short_ones(share: float) -> None:
    """Only tokens that can be kept are put in order: the row must be the one that ordering all of them gives."""
    random = np.random.default_rng(5)
    logits = np.round(random.normal(size=(6, 1000)).astype(np.float32) * 2, 1)
    cooled = logits - logits.max(axis=1, keepdims=True)
    longer = np.concatenate((cooled, np.full((6, 100), -np.inf, dtype=np.float32)), axis=1)
    n = len(cooled)
    for top_k, top_p, min_p, max_row in ((0, 1.0, 0.0, 50), (40, 0.8, 0.0, 128), (0, 0.7, 0.0, 9), (0, 1.0, 0.01, 900)):
        with np.errstate(divide="ignore"):
            floor = np.log(np.full(n, min_p, dtype=np.float32))
        cuts = Cuts(
            np.full(n, top_k), np.full(n, top_p, np.float32), floor, np.full(n, share, np.float32), np.full(n, max_row)
        )
        for long, short in zip(rows_of(longer, cuts), rows_of(cooled, cuts), strict=True):
            assert np.array_equal(long, short)
        assert (rows_of(cooled, cuts)[1].sum(axis=1) == ROW_TOTAL).all()
