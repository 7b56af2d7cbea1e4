"""The paged forward: the model's own logits, whatever else is in the batch and however a context was fed."""

import random
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from model_builders import MAX_CONTEXT, VOCABULARY, paged_twin, plain_logits, plain_model, random_ids
from torch import Tensor
from transformers import LlamaForCausalLM

from specmesh.model.errors import UnsupportedModel
from specmesh.model.paged import PagedModel, Span

TABLES = ([3, 11, 5, 40, 41, 42, 43], [9, 8, 7, 6], [20, 0, 1, 2])


@cache
def plain() -> LlamaForCausalLM:
    return plain_model()


def fed_at_once(model: PagedModel, token_ids: Sequence[int], table: Sequence[int]) -> Tensor:
    return model.forward([Span(token_ids, 0, table, 0)])


def test_logits_are_the_models_own() -> None:
    ids = random_ids(90, seed=1)
    found = fed_at_once(paged_twin(plain()), ids, TABLES[0])
    torch.testing.assert_close(found, plain_logits(plain(), ids), atol=2e-5, rtol=1e-5)


def test_bfloat16_is_close_to_float32() -> None:
    ids = random_ids(60, seed=1)
    found = fed_at_once(paged_twin(plain(), dtype=torch.bfloat16), ids, TABLES[0])
    want = plain_logits(plain(), ids)
    assert found.dtype == torch.bfloat16
    assert (found.float() - want).abs().mean() < 0.03 * want.abs().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_rows_asked_for_come_back_spans_in_order(dtype: torch.dtype) -> None:
    model = paged_twin(plain(), dtype=dtype)
    first, second, third = random_ids(20, 1), random_ids(7, 2), random_ids(9, 3)
    spans = [
        Span(first, 0, TABLES[0], 18),
        Span(second, 0, TABLES[1], len(second)),
        Span([], 0, [], 0),
        Span(third, 0, TABLES[2], 8),
    ]
    found = model.forward(spans)
    assert found.shape == (3, VOCABULARY)
    alone = torch.cat([fed_at_once(model, first, TABLES[0])[18:], fed_at_once(model, third, TABLES[2])[8:]])
    torch.testing.assert_close(found, alone, atol=0.0 if dtype == torch.float32 else 0.2, rtol=0.0)
    assert model.forward([Span(second, 0, TABLES[1], len(second))]).shape == (0, VOCABULARY)
    assert model.forward([]).shape == (0, VOCABULARY)


def greedy_together(model: PagedModel, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """All sessions in every forward; each at its own length."""
    outputs: list[list[int]] = [[] for _ in prompts]
    tables = [list(range(8 * index, 8 * index + 8)) for index in range(len(prompts))]
    fresh = [list(prompt) for prompt in prompts]
    cached = [0] * len(prompts)
    for _ in range(num_tokens):
        spans = [Span(*each, len(each[0]) - 1) for each in zip(fresh, cached, tables, strict=True)]
        cached = [span.end for span in spans]
        fresh = [[token] for token in model.forward(spans).argmax(-1).tolist()]
        for output, token in zip(outputs, fresh, strict=True):
            output += token
    return outputs


def test_greedy_ids_of_a_ragged_batch_equal_transformers_generate() -> None:
    """Golden: several prompts of unlike length decoded in one batch."""
    prompts = [random_ids(length, seed=length) for length in (1, 15, 16, 17, 33, 64)]
    found = greedy_together(paged_twin(plain()), prompts, 24)
    for prompt, ids in zip(prompts, found, strict=True):
        whole = plain().generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
        )
        assert ids == whole[0, len(prompt) :].tolist()


def test_rows_have_the_same_bits_in_any_batch_chunk_and_place() -> None:
    """Specification 1.3: float32 on CPU. Sessions grow by random pieces in random company and blocks."""
    model = paged_twin(plain())
    sessions = [random_ids(length, seed) for seed, length in enumerate((300, 141, 40))]
    wanted = [fed_at_once(model, session, range(30, 49)) for session in sessions]
    chooser = random.Random(7)
    for _ in range(4):
        blocks = chooser.sample(range(64), 57)
        tables = [blocks[19 * index : 19 * index + 19] for index in range(3)]
        done = [0, 0, 0]
        while any(at < len(session) for at, session in zip(done, sessions, strict=True)):
            chosen = [index for index in range(3) if chooser.random() < 0.7 and done[index] < len(sessions[index])]
            counts = [min(chooser.choice([1, 2, 5, 9, 17, 40]), len(sessions[index]) - done[index]) for index in chosen]
            spans = [
                Span(sessions[index][done[index] : done[index] + count], done[index], tables[index], 0)
                for index, count in zip(chosen, counts, strict=True)
            ]
            rows = torch.split(model.forward(spans), counts)
            for index, count, row in zip(chosen, counts, rows, strict=True):
                assert torch.equal(row, wanted[index][done[index] : done[index] + count])
                done[index] += count


def test_products_never_have_fewer_than_16_rows() -> None:
    """Specification 1.3: those of 1 to 3 rows differ, packed weights or not."""
    model = paged_twin(plain())
    seen: list[int] = []
    model.module.lm_head.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    model.module.model.layers[0].mlp.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    model.forward([Span([5], 0, [0], 0)])
    model.forward([Span(random_ids(17, 1), 0, [0, 1], 0)])
    assert seen == [16, 16, 32, 32]


def test_a_prompt_longer_than_one_forward_has_the_same_bits_as_in_pieces() -> None:
    model = paged_twin(plain())
    ids = random_ids(600, seed=3)
    table = list(range(38))
    at_once = fed_at_once(model, ids, table)
    pieces = [model.forward([Span(ids[at : at + 150], at, table, 0)]) for at in range(0, 600, 150)]
    assert torch.equal(at_once, torch.cat(pieces))
    for first_row in (0, 255, 256, 300, 599, 600):
        assert torch.equal(model.forward([Span(ids, 0, table, first_row)]), at_once[first_row:])
    torch.testing.assert_close(at_once, plain_logits(plain(), ids), atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("position", [1, 15, 16, 17, 30])
def test_after_rollback_nothing_of_the_rejected_tokens_shows(position: int) -> None:
    """C15, C16: the cache is truncated by position alone; what was written beyond is overwritten or never seen."""
    model = paged_twin(plain())
    ids = random_ids(40, seed=4)
    fed_at_once(model, random_ids(40, seed=5), TABLES[0])
    fed_at_once(model, ids[:position], TABLES[0])
    model.forward([Span(random_ids(9, seed=6), position, TABLES[0], 0)])
    found = model.forward([Span(ids[position:], position, TABLES[0], 0)])
    assert torch.equal(found, fed_at_once(model, ids, TABLES[1])[position:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_of_one_session_reaches_neither_neighbours_nor_the_next_owner_of_its_blocks(dtype: torch.dtype) -> None:
    """C6: the cache holds NaN afterwards; 0 * NaN must not be computed for anybody else."""
    poisoned = plain_model()
    poisoned.model.embed_tokens.weight.data[100] = torch.nan
    model = paged_twin(poisoned, dtype=dtype)
    healthy = [token % 100 for token in random_ids(21, seed=8)]
    wanted = fed_at_once(model, healthy, TABLES[1])
    spans = [Span([100] * 30, 0, TABLES[0], 0), Span(healthy, 0, TABLES[2], 0)]
    together = model.forward(spans)
    assert together[:30].isnan().all()
    torch.testing.assert_close(together[30:], wanted, atol=0.0 if dtype == torch.float32 else 0.2, rtol=0.0)
    assert torch.equal(fed_at_once(model, healthy, TABLES[0]), wanted)


def test_a_session_may_fill_the_whole_context() -> None:
    model = paged_twin(plain())
    ids = random_ids(MAX_CONTEXT, seed=9)
    assert model.max_context_tokens == MAX_CONTEXT
    table = list(range(MAX_CONTEXT // 16))
    model.forward([Span(ids[:-1], 0, table, MAX_CONTEXT - 1)])
    assert model.forward([Span(ids[-1:], MAX_CONTEXT - 1, table, 0)]).isfinite().all()


def test_bytes_per_block_is_what_the_cache_takes() -> None:
    assert paged_twin(plain()).bytes_per_block == 2 * 16 * 2 * (8 + 8) * 4
    assert paged_twin(plain(), dtype=torch.bfloat16).bytes_per_block == 2 * 16 * 2 * (8 + 8) * 2


@pytest.mark.parametrize("span", [Span([1] * 17, 0, [0], 0), Span([1], 16, [0], 0), Span([1], 0, [0], 2)])
def test_a_span_outside_its_blocks_or_rows_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="span"):
        paged_twin(plain()).forward([span])


def test_forward_without_a_cache_is_an_error() -> None:
    model = paged_twin(plain())
    fresh = PagedModel(model.module, device="cpu", dtype=torch.float32, vocabulary_size=VOCABULARY)
    with pytest.raises(RuntimeError, match="allocate_cache"):
        fresh.forward([Span([1], 0, [0], 0)])


def test_a_model_with_its_own_attention_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="keeps its own attention"):
        PagedModel(plain_model(), device="cpu", dtype=torch.float32, vocabulary_size=VOCABULARY)


def test_a_copied_block_holds_what_the_other_held() -> None:
    model = paged_twin(plain())
    ids = random_ids(40, seed=4)
    wanted = fed_at_once(model, ids, TABLES[0])
    for source, target in zip(TABLES[0], (50, 51), strict=False):
        model.copy_block(source, target)
    fed_at_once(model, random_ids(32, seed=5), TABLES[0])
    assert torch.equal(model.forward([Span(ids[32:], 32, [50, 51, 52], 0)]), wanted[32:])
