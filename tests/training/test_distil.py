"""Distilling: the loss measures what it says, training lowers it, and the head holds what its domain says."""

import numpy as np
import pytest
import torch
from training_parts import END, tiny_corpus, tiny_target, tiny_texts

from specmesh.training.batches import Batches, BatchSettings
from specmesh.training.distil import DistilSettings, DraftPlan, distil, make_drafts
from specmesh.training.draft_model import choose_tokens
from specmesh.training.loss import distance, training_loss

BATCHES = BatchSettings(8, {"prose": 0.5, "code": 0.5}, {"prose": 0.25, "code": 0.25}, 4, 0)


def test_distance_equals_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.randn(3, 11, generator=generator), torch.randn(3, 4, generator=generator)
    ids = torch.tensor([1, 4, 5, 9])
    measured = distance(target, draft, ids)
    target_probs, draft_probs = target.softmax(-1), draft.softmax(-1)
    for row in range(3):
        overlap = sum(min(float(target_probs[row, t]), float(draft_probs[row, j])) for j, t in enumerate(ids.tolist()))
        assert float(measured.overlap[row]) == pytest.approx(overlap, abs=1e-6)
    own = distance(target, target, torch.arange(11))
    torch.testing.assert_close(own.kl, torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(own.overlap, torch.ones(3))


def test_the_loss_turns_from_kl_to_variation() -> None:
    measured = distance(torch.randn(2, 5), torch.randn(2, 5), torch.arange(5))
    weights = torch.tensor([1.0, 0.0])
    assert float(training_loss(measured, weights, 0.0)) == pytest.approx(float(measured.kl[0]))
    assert float(training_loss(measured, weights, 1.0)) == pytest.approx(4 * (1 - float(measured.overlap[0])))


def trained(steps: int) -> tuple[dict[str, torch.Tensor], float]:
    """Weights after some steps, and the mean overlap with the target on the texts."""
    target, texts, corpus = tiny_target(), tiny_texts(), tiny_corpus()
    plans = [DraftPlan("code", ("code",), (0,), 60, 8), DraftPlan("both", ("prose", "code"), (0, 1), 80, 8)]
    drafts = make_drafts(target, plans, texts, corpus)
    saves: list[int] = []
    batches = Batches(texts, corpus, BATCHES, torch.device("cpu"))
    settings = DistilSettings(1e9, steps, 3e-3, 5, 0.35, 0.65, (0.6,), False, 0)
    distil(target, drafts, plans, batches, settings, save=lambda: saves.append(1), report=lambda line: None)
    assert len(saves) == 2
    tokens = torch.from_numpy(texts.tokens.astype(np.int64))
    with torch.inference_mode():
        overlap = distance(target(tokens).logits, drafts["code"](tokens), drafts["code"].token_ids).overlap.mean()
    return dict(drafts["code"].weights()), float(overlap)


def test_training_brings_a_draft_nearer_and_is_the_same_for_the_same_seed() -> None:
    first, after = trained(40)
    again, _ = trained(40)
    _, before = trained(3)
    assert after > before + 0.02
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_the_shared_embedding_is_not_trained_and_not_stored() -> None:
    draft = make_drafts(tiny_target(), [DraftPlan("d", ("code",), (0,), 40, 4)], tiny_texts(), tiny_corpus())["d"]
    assert not draft.decoder.get_input_embeddings().weight.requires_grad
    assert not any("embed_tokens" in name for name in draft.weights())


def test_a_head_holds_the_commonest_tokens_and_those_that_end_an_answer() -> None:
    shares = torch.tensor([0.1, 0.4, -0.2, 0.3, 0.0, 0.05])
    assert choose_tokens(shares, 3, [5]).tolist() == [1, 3, 5]
    assert choose_tokens(shares, 6, []).tolist() == [0, 1, 3, 5]  # none that it would rather do without


def test_weights_are_of_the_token_that_follows() -> None:
    batches = Batches(tiny_texts(), tiny_corpus(), BatchSettings(4, {"json": 1.0}, {}, 0, 0), torch.device("cpu"))
    batch = next(iter(batches))
    assert batch.domain == "json"
    assert batch.weights[0, :9].tolist() == [0.25] * 7 + [1.0] * 2
    assert batch.weights[0, -1] == 0


def test_long_batches_hold_rows_four_times_as_long() -> None:
    stream = iter(Batches(tiny_texts(), tiny_corpus(), BATCHES, torch.device("cpu")))
    shapes = [tuple(next(stream).tokens.shape) for _ in range(8)]
    assert shapes[3] == shapes[7] == (2, 128)
    assert shapes[0] == (8, 32)


def test_end_tokens_can_always_be_said() -> None:
    draft = make_drafts(tiny_target(), [DraftPlan("d", ("code",), (0,), 10, 4)], tiny_texts(), tiny_corpus())["d"]
    assert END in draft.token_ids.tolist()
