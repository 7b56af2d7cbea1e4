"""A sampling that exists is one the law is defined for; anything else names its field."""

import math

import pytest

from specmesh.runtime.context import ContextHasher, context_hash
from specmesh.runtime.errors import InvalidValue
from specmesh.runtime.types import MAX_LOGIT_BIAS, Sampling


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", -0.1),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("repetition_penalty", 1e-38),
        ("repetition_penalty", 1e38),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -math.inf),
        ("presence_penalty", 3e38),
        ("frequency_penalty", -3e38),
    ],
)
def test_a_value_out_of_range_names_its_field(field: str, value: float) -> None:
    """C17."""
    with pytest.raises(InvalidValue) as caught:
        Sampling(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == f"sampling.{field}"
    assert Sampling().temperature == 1.0


def test_the_edges_of_every_range_are_served() -> None:
    """C17: a tiny temperature is served as arg-max by the law, a huge top-k is off."""
    Sampling(temperature=1e-40, top_p=1e-6, top_k=9_999_999, min_p=1.0)
    Sampling(repetition_penalty=1e-3, presence_penalty=-1e6, frequency_penalty=1e6, logit_bias=((0, -1e6),))
    assert Sampling(temperature=0.0).greedy


def test_a_bias_that_is_not_a_number_names_its_field_and_too_many_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^sampling\.logit_bias:"):
        Sampling(logit_bias=((7, math.nan),))
    with pytest.raises(InvalidValue, match=r"^sampling\.logit_bias:"):
        Sampling(logit_bias=((7, -3e38),))
    with pytest.raises(InvalidValue, match=str(MAX_LOGIT_BIAS)):
        Sampling(logit_bias=tuple((token, 1.0) for token in range(MAX_LOGIT_BIAS + 1)))


def test_a_context_hash_grown_in_pieces_equals_that_of_the_whole() -> None:
    hasher = ContextHasher([1, 2])
    fork = hasher.copy()
    hasher.extend([70_000, 3])
    assert (hasher.value(), hasher.length) == (context_hash([1, 2, 70_000, 3]), 4)
    assert fork.value() == context_hash([1, 2]) != hasher.value()
