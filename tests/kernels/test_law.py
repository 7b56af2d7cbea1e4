"""The target law: order and meaning of the options, against transformers, against the literal law, and small cases."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from law_harness import same_law
from law_literal import Margin
from law_literal import law as literal_law
from torch import Tensor
from transformers.generation import logits_process as hf

from specmesh.kernels.packing import pack_law
from specmesh.kernels.reference.law import adjusted_scores, log_law, non_finite
from specmesh.runtime.types import Sampling

NARROW = 1e-4
Temperature = st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.7])
Samplings = st.builds(
    Sampling,
    temperature=Temperature,
    top_p=st.sampled_from([1.0, 0.9137, 0.6271, 0.31, 1e-6]),
    top_k=st.sampled_from([0, 1, 2, 5, 9_999_999]),
    min_p=st.sampled_from([0.0, 0.0713, 0.413]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.6, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.37]),
    logit_bias=st.sampled_from([(), ((0, 1.3), (2, -2.1))]),
)


def law_of(logits: Tensor, sampling: Sampling, counts: dict[int, int] | None = None) -> Tensor:
    """Probabilities of one row `[V]`."""
    params = pack_law([sampling], [counts if counts is not None else {}])
    zero = torch.zeros(1, dtype=torch.int64)
    return log_law(adjusted_scores(logits[None], params, zero), params, zero).exp()[0]


def random_logits(seed: int, size: int, contrast: float = 2.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * contrast


@settings(max_examples=300, deadline=None)
@given(sampling=Samplings, seed=st.integers(0, 10**6), size=st.integers(1, 40), seen=st.lists(st.integers(0, 9)))
def test_the_law_equals_the_literal_one(sampling: Sampling, seed: int, size: int, seen: list[int]) -> None:
    logits, counts, margin = random_logits(seed, size), dict(Counter(seen)), Margin()
    expected = literal_law(logits.tolist(), sampling, counts, margin)
    assume(margin.narrowest > NARROW)
    if sampling.greedy:
        assert law_of(logits, sampling, counts).argmax().item() == expected.index(1.0)
        return
    got = law_of(logits, sampling, counts)
    assert [p > 0 for p in got.tolist()] == [p > 0 for p in expected]
    assert got.tolist() == pytest.approx(expected, abs=2e-6)


@settings(max_examples=200, deadline=None)
@given(
    sampling=Samplings.filter(lambda s: s.temperature > 0 and s.presence_penalty == 0 and s.frequency_penalty == 0),
    seed=st.integers(0, 10**6),
    seen=st.lists(st.integers(0, 9), min_size=1),
)
def test_the_law_equals_transformers_processors_in_their_order(sampling: Sampling, seed: int, seen: list[int]) -> None:
    logits, margin = random_logits(seed, 30), Margin()
    literal_law(logits.tolist(), sampling, Counter(seen), margin)
    assume(margin.narrowest > NARROW)
    expected = torch.softmax(processors(sampling)(torch.tensor([seen]), logits[None].clone()), dim=-1)[0]
    got = law_of(logits, sampling, dict(Counter(seen)))
    assert (got > 0).equal(expected > 0)
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-4)


def processors(sampling: Sampling) -> hf.LogitsProcessorList:
    """As `generate` lines them up; presence and frequency penalties have no counterpart there."""
    chain = hf.LogitsProcessorList()
    if sampling.logit_bias:
        chain.append(hf.SequenceBiasLogitsProcessor({(token,): bias for token, bias in sampling.logit_bias}))
    if sampling.repetition_penalty != 1:
        chain.append(hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(hf.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(hf.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        chain.append(hf.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        chain.append(hf.MinPLogitsWarper(sampling.min_p))
    return chain


def test_ties_keep_the_lower_id() -> None:
    ties = torch.tensor([1.0, 3.0, 3.0, 3.0, 1.0])
    assert law_of(ties, Sampling(top_k=2)).tolist() == pytest.approx([0, 0.5, 0.5, 0, 0])
    assert law_of(ties, Sampling(top_k=4)).tolist()[4] == 0
    assert law_of(torch.zeros(6), Sampling(top_k=1)).tolist() == [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("temperature", [1e-40, 1e-45, 1e-300, 1e-9])
def test_a_tiny_temperature_is_the_arg_max_and_does_not_overflow(temperature: float) -> None:
    """C17."""
    logits = torch.tensor([1.0, 5.0, 4.9999, -3e38, 3.0])
    assert law_of(logits, Sampling(temperature=temperature)).tolist() == [0, 1, 0, 0, 0]
    assert law_of(logits * 6e37, Sampling(temperature=temperature)).argmax().item() == 1


def test_top_k_beyond_the_vocabulary_is_off() -> None:
    """C17."""
    logits = random_logits(1, 10)
    for top_k in (10, 11, 9_999_999, 2**32 - 1):
        assert law_of(logits, Sampling(top_k=top_k)).equal(law_of(logits, Sampling()))


def test_temperature_divides_the_logits_and_not_the_probabilities() -> None:
    logits = torch.tensor([0.0, math.log(2.0)])
    assert law_of(logits, Sampling(temperature=0.5)).tolist() == pytest.approx([0.2, 0.8])


def test_ids_beyond_the_vocabulary_have_no_bias_and_no_penalty() -> None:
    sampling = Sampling(logit_bias=((9, 5.0),), frequency_penalty=1.0)
    logits = random_logits(2, 4)
    assert law_of(logits, sampling, {9: 3}).tolist() == pytest.approx(torch.softmax(logits, 0).tolist())


def test_minus_infinity_is_a_masked_token_and_everything_else_that_is_not_finite_is_a_fault() -> None:
    rows = torch.tensor(
        [
            [1.0, -torch.inf, 2.0],
            [1.0, torch.nan, 2.0],
            [1.0, torch.inf, 2.0],
            [-torch.inf, -torch.inf, -torch.inf],
            [0.0, 0.0, 0.0],
        ]
    )
    assert non_finite(rows).tolist() == [False, True, True, True, False]
    masked = law_of(rows[0], Sampling(top_p=0.99, repetition_penalty=1.5), {1: 2})
    assert masked.tolist() == pytest.approx(torch.softmax(rows[0], 0).tolist())


@pytest.mark.parametrize("size", [7, 300, 2049, 5000])
@pytest.mark.parametrize("options", [{}, {"top_k": 50}, {"top_p": 0.9}, {"top_k": 700, "top_p": 0.8, "min_p": 0.01}])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(size: int, options: dict[str, float]) -> None:
    sampling = Sampling(temperature=0.8, **options)  # type: ignore[arg-type]
    rows = torch.stack([random_logits(seed, size, 1 + seed) for seed in range(5)])
    params = same_law(sampling, 5, torch.zeros((5, 0), dtype=torch.int64))
    together = log_law(rows, params, torch.arange(5))
    for i in range(5):
        assert log_law(rows[i : i + 1].clone(), params, torch.tensor([i])).equal(together[i : i + 1])
    wide = torch.nn.functional.pad(rows, (3, 9), value=torch.nan)[:, 3:-9]
    assert log_law(wide, params, torch.arange(5)).equal(together)
