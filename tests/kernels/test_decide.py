"""The inner decision with uniforms and noise fed by hand: the reference's, and the kernel's beside it."""

import warnings

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from compiled_verify import DEVICE
from torch import Tensor

from specmesh.kernels.compiled.decide import accepted_by_block, accepted_by_token, ratios_of, reach_of
from specmesh.kernels.compiled.reject import of_tile, share_of
from specmesh.kernels.reference import decide
from specmesh.kernels.reference.decide import BlockProbs, Decision, residual_scores

Rows = list[list[float]]
ROWS, IDS = 8, 4
"""Of a tile: a block and one row more, and a vocabulary."""


@triton.jit
def decide_kernel(own, row, uniforms, accepted, length, LP: tl.constexpr, KP: tl.constexpr):  # noqa: ANN001, ANN201, N803
    """`own` `[2, LP]`, `row` `[2, LP, KP]`: T and D; `accepted` `[2]`: by TOKEN, by BLOCK."""
    places = tl.arange(0, LP)
    ids = tl.arange(0, KP)[None, :] + places[:, None] * 0
    ratios = ratios_of(tl.load(own + places), tl.load(own + LP + places), places, length)
    cells = row + places[:, None] * KP + ids
    reach = reach_of(ratios, places, LP)
    tile = (ids, tl.load(cells), tl.load(cells + LP * KP), tl.zeros((LP, KP), tl.float32))
    mass, inside, _, _ = of_tile(tile, reach)
    of_place = tl.load(uniforms + places, mask=places < length, other=1.0)
    # BLOCK asks about i tokens with the uniform of the last of them.
    before = tl.load(uniforms + places - 1, mask=(places >= 1) & (places <= length), other=1.0)
    tl.store(accepted, accepted_by_token(ratios, of_place, places, length, LP))
    tl.store(accepted + 1, accepted_by_block(reach, share_of(mass), share_of(inside), before, places, length))


def by_kernel(probs: BlockProbs, uniforms: Tensor) -> list[list[int]]:
    """Accepted by TOKEN, and by BLOCK, of every session."""
    found = []
    for i, length in enumerate(probs.length.tolist()):
        own, row = torch.zeros(2, ROWS), torch.zeros(2, ROWS, IDS)
        size, ids = probs.row_draft_probs.shape[1:]
        own[:, :size] = torch.stack((probs.target_probs[i], probs.draft_probs[i]))
        row[:, :size, :ids] = torch.stack((probs.row_target_probs[i], probs.row_draft_probs[i]))
        accepted = torch.full((2,), -1, dtype=torch.int32, device=DEVICE)
        arguments = (x.to(DEVICE) for x in (own, row, uniforms[i].contiguous()))
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            decide_kernel[(1,)](*arguments, accepted, length, LP=ROWS, KP=IDS)
        found.append(accepted.tolist())
    return found


def decide_token(probs: BlockProbs, uniforms: Tensor) -> Decision:
    """The reference's, once the kernel's is seen to be the same."""
    decision = decide.decide_token(probs, uniforms)
    assert [token for token, _ in by_kernel(probs, uniforms)] == decision.num_accepted.tolist()
    return decision


def decide_block(probs: BlockProbs, uniforms: Tensor) -> Decision:
    """The same."""
    decision = decide.decide_block(probs, uniforms)
    assert [block for _, block in by_kernel(probs, uniforms)] == decision.num_accepted.tolist()
    return decision


def probs_of(target: Rows, draft: Rows, tokens: list[int]) -> BlockProbs:
    """One session; every draft row lists the whole vocabulary, entries of probability 0 are none."""
    length = len(tokens)
    t, d = torch.tensor([target[:length]]), torch.tensor([draft])
    at = torch.tensor([tokens])[..., None]
    entry = d > 0
    own = [x.gather(2, at)[..., 0] for x in (t, d)]
    return BlockProbs(torch.tensor([length]), own[0], own[1], torch.where(entry, t, 0.0), d, entry)


def outcome(decision: Decision) -> tuple[int, float]:
    return int(decision.num_accepted), float(decision.scale)


def one_hot(token: int, size: int) -> list[float]:
    return [float(i == token) for i in range(size)]


def test_a_token_the_target_never_says_is_rejected_even_at_u_0() -> None:
    """C5: T = [0, 1, 0, 0], draft 0, u = 0: reject, and 1 is all the residual has."""
    target = [[0.0, 1.0, 0.0, 0.0]] * 2
    probs = probs_of(target, [one_hot(0, 4)], [0])
    for rule in (decide_token, decide_block):
        decision = rule(probs, torch.zeros(1, 1))
        assert outcome(decision)[0] == 0
        scores = residual(target[0], one_hot(0, 4), decision)
        assert scores.argmax().item() == 1
        assert scores.exp().tolist() == [0, 1, 0, 0]


def test_a_token_outside_its_own_row_is_never_kept() -> None:
    """C5: T = 1e-6 where D = 0 is no ratio of infinity, at whatever offset and uniform."""
    target, inside, outside = [[0.5, 1e-6, 0.499999]] * 3, [0.5, 0.0, 0.5], 1
    for tokens, kept in (([outside], 0), ([0, outside], 1), ([outside, 0], 0)):
        probs = probs_of(target, [inside] * len(tokens), tokens)
        for rule in (decide_token, decide_block):
            assert outcome(rule(probs, torch.zeros(1, len(tokens))))[0] == kept


def residual(target: list[float], draft: list[float], decision: Decision) -> Tensor:
    entries = [i for i, d in enumerate(draft) if d > 0]
    row = (
        torch.zeros(len(entries), dtype=torch.int64),
        torch.tensor(entries),
        torch.tensor([draft[i] for i in entries]),
    )
    return residual_scores(torch.tensor([target]).log(), decision.scale, row)[0]


def test_a_uniform_equal_to_the_ratio_rejects() -> None:
    """C5: strict."""
    probs = probs_of([[0.25, 0.75]] * 2, [one_hot(0, 2)], [0])
    for u, kept in ((0.25, 0), (0.2499, 1)):
        for rule in (decide_token, decide_block):
            assert outcome(rule(probs, torch.tensor([[u]])))[0] == kept


def test_token_stops_at_the_first_no_and_block_at_the_last_yes() -> None:
    """C7: tests [yes, no, yes, yes]: accepted = 1 under TOKEN, 4 under BLOCK."""
    target, draft = [[0.5, 0.5]] * 5, [[1.0, 0.0]] * 4
    probs = probs_of(target, draft, [0, 0, 0, 0])
    assert outcome(decide_token(probs, torch.tensor([[0.1, 0.9, 0.1, 0.1]])))[0] == 1
    assert outcome(decide_block(probs, torch.tensor([[0.1, 0.9, 0.01, 0.01]])))[0] == 4


def test_block_reaches_as_the_paper_says() -> None:
    """P, S and h by hand: T = [.5, .3, .2], D = [.2, .5, .3], drafts 1, 1, 0."""
    target, draft = [[0.5, 0.3, 0.2]] * 4, [[0.2, 0.5, 0.3]] * 3
    probs = probs_of(target, draft, [1, 1, 0])
    reach = [0.6, 0.36, 0.9]
    residuals = [max(p * 0.5 - 0.2, 0) + max(p * 0.3 - 0.5, 0) + max(p * 0.2 - 0.3, 0) for p in reach]
    accepts = [residuals[0] / (residuals[0] + 0.4), residuals[1] / (residuals[1] + 0.64), reach[2]]
    for i in range(3):
        just = [[1.0] * 3]
        just[0][i] = accepts[i] - 1e-5
        kept = outcome(decide_block(probs, torch.tensor(just)))
        if accepts[i] > 0:
            assert kept == (i + 1, pytest.approx(reach[i]))
        just[0][i] = accepts[i] + 1e-5
        assert outcome(decide_block(probs, torch.tensor(just)))[0] == 0


def test_equal_distributions_are_always_accepted_without_a_division_by_zero() -> None:
    """C3: 0 / 0 in h counts as 1."""
    target = [[0.5, 0.25, 0.25]] * 4
    probs = probs_of(target, target[:3], [2, 0, 1])
    most = torch.full((1, 3), 1 - 2.0**-24)
    assert outcome(decide_token(probs, most))[0] == 3
    assert outcome(decide_block(probs, most)) == (3, 1.0)


def test_zero_over_zero_in_h_counts_as_one() -> None:
    """C3: a last uniform of 1, which no draw gives, rejects the last token and shows the h before it."""
    target = [[0.5, 0.5]] * 4
    probs = probs_of(target, target[:3], [0, 1, 0])
    assert outcome(decide_block(probs, torch.tensor([[0.9, 0.9, 1.0]]))) == (2, 1.0)


def test_a_block_ends_at_its_received_length() -> None:
    """Padding behind a shorter block of the same batch decides nothing."""
    target, draft = [[0.5, 0.5]] * 4, [[1.0, 0.0]] * 3
    whole = probs_of(target, draft, [0, 0, 0])

    def twice(x: Tensor) -> Tensor:
        return torch.cat((x, x))

    both = BlockProbs(
        torch.tensor([1, 3]), twice(whole.target_probs), twice(whole.draft_probs), twice(whole.row_target_probs),
        twice(whole.row_draft_probs), twice(whole.row_is_entry),
    )  # fmt: skip
    for first, kept in ((0.49, 1), (0.51, 0)):
        uniforms = torch.tensor([[first, 0.0, 0.0], [0.0, 0.0, 0.0]])
        block, token = decide_block(both, uniforms), decide_token(both, uniforms)
        assert block.num_accepted.tolist() == token.num_accepted.tolist() == [kept, 3]
        assert block.scale.tolist() == [0.5 if kept else 1.0, 0.125]


def test_a_nan_ratio_is_never_an_acceptance() -> None:
    probs = probs_of([[torch.nan, 0.5]] * 2, [[1.0, 0.0]], [0])
    assert outcome(decide_token(probs, torch.zeros(1, 1)))[0] == 0
    assert outcome(decide_block(probs, torch.zeros(1, 1)))[0] == 0


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_nan_ratio_in_a_longer_block_keeps_nothing_from_there_on(at: int) -> None:
    """h of a NaN is a NaN, and not the 1 of 0 / 0."""
    probs = probs_of([[0.5, 0.5]] * 4, [[0.5, 0.5]] * 3, [0, 0, 0])
    probs.target_probs[0, at] = torch.nan
    for rule in (decide_token, decide_block):
        assert outcome(rule(probs, torch.zeros(1, 3)))[0] == at


def test_an_empty_residual_falls_back_to_the_target() -> None:
    target = [0.5, 0.25, 0.25]
    scores = residual(target, target, Decision(torch.tensor([0]), torch.tensor([1.0])))
    assert scores.exp().tolist() == target
