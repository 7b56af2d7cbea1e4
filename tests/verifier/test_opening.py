"""Openings over real gRPC that are refused by name, each in time, and the next one works."""

import time
from collections.abc import Sequence

import grpc
import grpc.aio
import pytest
from verifier_parts import make_spec, numbers
from verifier_server import Peer, opening_messages

from specmesh.runtime.errors import ContextTooLong, InvalidValue, MeshError
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.types import Rule, Sampling
from specmesh.v1 import verifier_service_pb2 as pb


async def refused(peer: Peer, messages: Sequence[pb.VerifierServiceOpenRequest]) -> MeshError:
    """The error of an `Open`, which came in under a second, and after which a good one works."""
    started = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await peer.stub.Open(iter(messages))
    assert time.monotonic() - started < 1
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await peer.open(make_spec([3], session_id=77))
    assert (await peer.step(77, 1)).token_ids == (4,)
    return from_rpc_error(caught.value)


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"context": []}, "prompt_length", "at least one"),
        ({"context": numbers(0, 41)}, "prompt_length", "max_prompt_tokens: 40"),
        ({"context": numbers(0, 64), "prompt_length": 1}, "context_length", "max_context_tokens: 64"),
        ({"context": numbers(0, 600_000), "prompt_length": 1}, "context_length", "max_context_tokens: 64"),
        ({"context": [3], "prompt_length": 2}, "prompt_length", "2 of a context of 1"),
        ({"context": [3, 32]}, "token_ids", "vocabulary of 32"),
        ({"stop_token_ids": frozenset({32})}, "stop_token_ids", "vocabulary of 32"),
        ({"stop_token_ids": frozenset({1, 2, 3, 4})}, "stop_token_ids", "max_stop_token_ids: 3"),
        ({"sampling": Sampling(logit_bias=((32, 1.0),))}, "sampling.logit_bias", "vocabulary of 32"),
        ({"logprobs": 21}, "logprobs", "max_logprobs: 20"),
        ({"lease_ms": 0}, "lease_ms", "max_lease_ms: 60000"),
        ({"lease_ms": 60_001}, "lease_ms", "max_lease_ms: 60000"),
        ({"max_output_tokens": 0}, "max_output_tokens", "0"),
        ({"context": [3, 4, 5], "prompt_length": 1, "max_output_tokens": 2}, "max_output_tokens", "2 are emitted"),
        ({"context": [3, 4], "prompt_length": 1, "stop_token_ids": frozenset({4})}, "token_ids", "has ended"),
        ({"peer": ""}, "peer", "empty"),
    ],
)
async def test_an_opening_out_of_bounds_is_refused_by_name(
    peer: Peer, changes: dict[str, object], field: str, said: str
) -> None:
    """C21: empty prompt, one over the context, 2 MB."""
    error = await refused(peer, opening_messages(**changes))
    assert isinstance(error, ContextTooLong if "max_context" in said or "max_prompt" in said else InvalidValue)
    assert error.field == field
    assert said in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0), ("temperature", float("nan")), ("temperature", float("inf")),
        ("top_p", 0.0), ("top_p", -0.1), ("top_p", 1.5), ("top_p", float("nan")),
        ("min_p", -0.1), ("min_p", 1.1), ("repetition_penalty", 0.0), ("frequency_penalty", float("inf")),
    ],
)  # fmt: skip
async def test_sampling_that_has_no_law_is_refused_by_name(peer: Peer, field: str, value: float) -> None:
    """C17."""
    messages = opening_messages()
    setattr(messages[0].header.sampling, field, value)
    error = await refused(peer, messages)
    assert error.field == f"sampling.{field}"


async def test_extreme_sampling_is_served(peer: Peer) -> None:
    """C17: temperature 1e-40 is arg-max, top-k 9,999,999 means off, both ends of the seeds are reproducible."""
    cold = make_spec([3], session_id=1, sampling=Sampling(temperature=1e-40, top_k=9_999_999), max_output_tokens=6)
    assert (await peer.generate(cold))[0] == numbers(4, 6)
    for seed in (0, 2**64 - 1):
        texts = []
        for _ in range(2):
            sampled = make_spec(
                [3], session_id=2, sampling=Sampling(temperature=3.0), rule=Rule.COUPLED, verify_key=seed,
                max_output_tokens=20,
            )  # fmt: skip
            texts.append((await peer.generate(sampled))[0])
        assert texts[0] == texts[1]


def spoilt_openings() -> dict[str, list[pb.VerifierServiceOpenRequest]]:
    chunk = pb.VerifierServiceOpenRequest(token_ids=[3])
    short = opening_messages(context=[3, 4])
    del short[0].token_ids[1:]
    no_rule = opening_messages()
    no_rule[0].header.rule = 0
    unknown = opening_messages()
    unknown[0].header.MergeFromString(b"\xf8\x07\x01")
    big = opening_messages(context=[3], max_output_tokens=5)
    big[0].token_ids.extend([3] * 16_384)
    announced = opening_messages(context=[3, 3, 3, 3, 3, 3])
    del announced[0].token_ids[:]
    return {
        "header": [chunk],
        "header again": opening_messages() * 2,
        "context_length": [*opening_messages(), chunk],
        "context_length short": short,
        "token_ids chunks": [*announced, *[chunk] * 5],
        "token_ids size": big,
        "rule": no_rule,
        "header.127": unknown,
    }


@pytest.mark.parametrize("fault", list(spoilt_openings()))
async def test_a_malformed_opening_is_refused_by_name(peer: Peer, fault: str) -> None:
    error = await refused(peer, spoilt_openings()[fault])
    assert error.field == fault.split()[0]


async def test_an_opening_without_a_message_is_refused(peer: Peer) -> None:
    assert (await refused(peer, [])).field == "context_length"
