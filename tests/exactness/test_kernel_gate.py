"""Gate 4: whatever claims to be `verify` decides as the literal rules do, and gives the same log-probabilities.

The tensor form is compared with plain Python loops; the compiled form with these, and with the tensor form.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log

import pytest
import torch
from compiled_verify import NARROW, check_with_literal_and_reference, compiled_verify
from hypothesis import HealthCheck, assume, given, seed, settings
from law_literal import Margin, law, verify
from torch import Tensor
from verify_batches import VerifyExample, verify_examples

from specmesh.kernels import ops
from specmesh.kernels.inputs import VerifyInput, VerifyOutcome
from specmesh.kernels.packing import pack_verify
from specmesh.kernels.reference.verify import verify_batch
from specmesh.runtime.types import Sampling

Kernel = Callable[..., list[VerifyOutcome]]
KERNELS: dict[str, Kernel] = {"reference": ops.verify}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(example=verify_examples())
def test_decisions_equal_the_literal_rules(kernel: Kernel, example: VerifyExample) -> None:
    margin = Margin()
    expected = [verify(example.rows_of(b), item, margin) for b, item in enumerate(example.inputs)]
    assume(margin.narrowest > NARROW)
    outcomes = kernel(example.logits, example.inputs, vocabulary_size=example.vocabulary_size)
    assert [(o.num_accepted, o.next_token) if o.finite else None for o in outcomes] == expected


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(example=verify_examples())
def test_log_probabilities_are_those_of_the_processed_law(kernel: Kernel, example: VerifyExample) -> None:
    margin = Margin()
    for b in range(len(example.inputs)):
        verify(example.rows_of(b), example.inputs[b], margin)
    assume(margin.narrowest > NARROW)
    asked = [0 if b % 2 == 0 else None for b in range(len(example.inputs))]
    outcomes = kernel(example.logits, example.inputs, vocabulary_size=example.vocabulary_size, num_top=asked)
    for b, (item, outcome) in enumerate(zip(example.inputs, outcomes, strict=True)):
        if not outcome.finite:
            continue
        assert len(outcome.logprobs) == (outcome.num_accepted + 1 if b % 2 == 0 else 0)
        emitted = [*item.draft_token_ids[: outcome.num_accepted], outcome.next_token]
        for offset, (token, got) in enumerate(zip(emitted, outcome.logprobs, strict=False)):
            wanted = log(probability(example.rows_of(b)[offset], item, emitted[:offset], token))
            assert got.logprob == pytest.approx(wanted, abs=1e-4, rel=1e-5)


def probability(logits: Sequence[float], item: VerifyInput, before: Sequence[int], token: int) -> float:
    """Of a token under the processed law; at temperature 0 under that of temperature 1, untruncated."""
    sampling = item.sampling
    if sampling.greedy:
        sampling = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return law(logits, sampling, Counter(item.token_counts or {}) + Counter(before))[token]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(4))
def test_the_compiled_form_equals_the_literal_rules_and_the_reference(shard: int) -> None:
    """Under the interpreter a row takes up to a fifth of a second; rows are counted, and shards can run side by side.

    With these seeds they have 366 rows together.
    """
    rows = 0

    @seed(shard)
    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(example=verify_examples())
    def check(example: VerifyExample) -> None:
        nonlocal rows
        check_with_literal_and_reference(example)
        rows += len(example.logits)

    check()
    assert rows >= 65, "four shards must have 300 rows together"


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(example=verify_examples(max_batch=3, vocabularies=(3, 101)))
def test_a_compiled_outcome_is_the_same_alone_and_in_any_batch(example: VerifyExample) -> None:
    """Bit for bit."""
    size, asked = example.vocabulary_size, [0] * len(example.inputs)
    together = compiled_verify(example.logits, example.inputs, vocabulary_size=size, num_top=asked)
    start = 0
    for item, outcome in zip(example.inputs, together, strict=True):
        rows = example.logits[start : start + len(item.draft_token_ids) + 1]
        alone = compiled_verify(rows, [item], vocabulary_size=size, num_top=[0])[0]
        assert alone == outcome or not (alone.finite or outcome.finite)
        start += len(rows)


@settings(max_examples=150, deadline=None)
@given(example=verify_examples())
def test_a_batch_of_plain_greedy_sessions_decides_as_the_tensor_form_does(example: VerifyExample) -> None:
    """Such a batch takes a way of its own; drafts are led along the arg-max so that some are kept."""
    size = example.vocabulary_size
    items = [
        replace(item, sampling=Sampling(temperature=0.0), rows=(), draft_token_ids=led(example.rows_of(b), item))
        for b, item in enumerate(example.inputs)
    ]
    result = verify_batch(pack_verify(example.logits, items, size))
    for b, outcome in enumerate(ops.verify(example.logits, items, vocabulary_size=size)):
        assert outcome.finite == bool(result.finite[b])
        if outcome.finite:
            assert (outcome.num_accepted, outcome.next_token) == (result.num_accepted[b], result.next_token[b])


def led(rows: Sequence[Sequence[float]], item: VerifyInput) -> list[int]:
    """The example's draft, its first tokens replaced by the arg-max."""
    tokens = list(item.draft_token_ids)
    for offset in range(min(len(tokens), item.key % 9)):
        tokens[offset] = max(range(len(rows[offset])), key=lambda token, row=rows[offset]: row[token])  # type: ignore[misc]
    return tokens


@settings(max_examples=60, deadline=None)
@given(example=verify_examples(max_batch=6, vocabularies=(3, 101, 1500)))
def test_an_outcome_is_the_same_alone_and_in_any_batch(example: VerifyExample) -> None:
    """Bit for bit: what COUPLED promises needs it."""
    size, asked = example.vocabulary_size, [2] * len(example.inputs)
    together = ops.verify(example.logits, example.inputs, vocabulary_size=size, num_top=asked)
    reverse = ops.verify(reversed_rows(example), example.inputs[::-1], vocabulary_size=size, num_top=asked)
    assert reverse[::-1] == together
    start = 0
    for item, outcome in zip(example.inputs, together, strict=True):
        rows = example.logits[start : start + len(item.draft_token_ids) + 1]
        assert ops.verify(rows, [item], vocabulary_size=size, num_top=[2]) == [outcome]
        start += len(rows)


def reversed_rows(example: VerifyExample) -> Tensor:
    blocks = example.logits.split([len(item.draft_token_ids) + 1 for item in example.inputs])
    return torch.cat(blocks[::-1])
