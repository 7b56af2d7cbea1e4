from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from serving_fakes import DRAFT_NAME, ROUTER_NAME, Script, call_every_kind, scripted_server

from specmesh.runtime import errors
from specmesh.runtime.config import ServerConfig
from specmesh.runtime.status import PUSHBACK_KEY, from_rpc_error
from specmesh.runtime.streams import channel
from specmesh.v1 import router_service_pb2 as router_pb

KINDS = ["unary", "client_stream", "server_stream", "bidi"]


def raising(error: Exception) -> Script:
    async def fail() -> None:
        raise error

    return Script(on_call=fail)


async def failures(error: Exception) -> dict[str, grpc.aio.AioRpcError]:
    async with scripted_server(raising(error)) as server, channel(server.address) as to_server:
        results = await call_every_kind(to_server)
    assert list(results) == KINDS
    return {kind: failure for kind, failure in results.items() if failure is not None}


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidValue("sampling.top_p", "must be in (0, 1]"),
        errors.UnknownField("unknown field number 99", field="99"),
        errors.Overloaded("queue full", retry_after=0.25),
        errors.QuotaExceeded("8 calls at once"),
        errors.NoVerifier("none"),
        errors.NonFiniteLogits("target"),
    ],
    ids=lambda error: error.reason,
)
async def test_an_error_crosses_every_kind_of_call_whole(error: errors.MeshError) -> None:
    results = await failures(error)
    assert list(results) == KINDS
    for failure in results.values():
        back = from_rpc_error(failure)
        assert type(back) is type(error)
        assert (back.status, back.reason, back.field) == (error.status, error.reason, error.field)
        assert back.message == error.message


async def test_resource_exhausted_says_when_to_retry_in_both_ways() -> None:
    for failure in (await failures(errors.Overloaded("full", retry_after=0.25))).values():
        assert dict(failure.trailing_metadata())[PUSHBACK_KEY] == "250"
        assert from_rpc_error(failure).retry_after == 0.25
    for failure in (await failures(errors.Overloaded("full"))).values():
        assert from_rpc_error(failure).retry_after == 1.0


async def test_errors_that_a_retry_cannot_help_carry_no_pushback() -> None:
    for failure in (await failures(errors.InvalidValue("x", "bad"))).values():
        assert PUSHBACK_KEY not in dict(failure.trailing_metadata())
        assert from_rpc_error(failure).retry_after is None


async def test_a_fault_of_the_server_leaks_nothing() -> None:
    results = await failures(KeyError("the prompt's own words"))
    assert list(results) == KINDS
    for failure in results.values():
        assert failure.code() is grpc.StatusCode.INTERNAL
        assert "prompt" not in str(failure.details())


async def test_a_call_after_a_failed_one_works() -> None:
    script = raising(errors.InvalidValue("x", "bad"))
    async with scripted_server(script) as server, channel(server.address) as to_server:
        assert all((await call_every_kind(to_server)).values())
        script.on_call = Script().on_call
        assert not any((await call_every_kind(to_server)).values())


async def test_a_failure_without_details_keeps_its_status() -> None:
    async with channel("127.0.0.1:1") as nowhere:
        failure = (await call_every_kind(nowhere))["unary"]
    assert failure is not None
    back = from_rpc_error(failure)
    assert (type(back), back.status, back.reason) == (errors.MeshError, grpc.StatusCode.UNAVAILABLE, "")


async def test_too_many_calls_are_refused_with_the_limit_named_and_counted_out_again() -> None:
    config = ServerConfig(max_concurrent_calls=1)
    async with scripted_server(Script(), config) as server, channel(server.address) as to_server:
        for _ in range(3):
            assert not any((await call_every_kind(to_server)).values())


def test_every_reason_of_the_protocol_has_an_error_and_every_error_a_reason() -> None:
    names = {name.removeprefix("ERROR_REASON_") for name in router_pb.ErrorReason.keys()} - {"UNSPECIFIED"}  # noqa: SIM118
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.MeshError)]
    assert {cls.reason for cls in classes} - {""} == names


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (f"/{ROUTER_NAME}/Generate", b"\x0a\x02\xff\xfe"),  # not UTF-8
        (f"/{ROUTER_NAME}/Generate", b"\x0a\xff"),  # cut short
        (f"/{DRAFT_NAME}/GetInfo", b"\x07"),  # no tag
    ],
)
async def test_bytes_that_are_no_message_are_the_callers_fault(
    method: str, message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_server(Script()) as server, channel(server.address) as to_server:
        make = to_server.unary_stream if method.endswith("Generate") else to_server.unary_unary
        call: Any = make(method)(message)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call.read() if method.endswith("Generate") else call)
        error = from_rpc_error(caught.value)
        assert (error.status, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")
        assert error.field == "request"
        assert not caplog.records
        assert not any((await call_every_kind(to_server)).values()), "the next calls work"


@pytest.mark.parametrize("method", ["Open", "Draft"])
async def test_a_message_of_a_stream_that_is_none_is_the_callers_fault(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def sent() -> AsyncIterator[bytes]:
        yield b"\x07"  # no tag

    async with scripted_server(Script()) as server, channel(server.address) as to_server:
        make = to_server.stream_unary if method == "Open" else to_server.stream_stream
        call: Any = make(f"/{DRAFT_NAME}/{method}")(sent())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call if method == "Open" else call.read())
        error = from_rpc_error(caught.value)
        assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "request")
        assert not [record for record in caplog.records if record.name.startswith("specmesh")]
