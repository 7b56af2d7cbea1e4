"""A router that asks and does not read: its stream ends, and others go on."""

import logging

import grpc
import grpc.aio
import pytest
from draft_fakes import CONTEXT, LAW
from draft_peers import ask_for, draft_peer, law_drafter
from router_fakes import until

from specmesh.runtime.config import ServerConfig
from specmesh.runtime.errors import NotRead
from specmesh.runtime.status import from_rpc_error
from specmesh.runtime.wire import draft_ask_to_entry
from specmesh.v1 import draft_service_pb2 as pb
from specmesh.v1 import draft_service_pb2_grpc as pb_grpc

SMALL_WINDOW = [("grpc.http2.bdp_probe", 0)]
"""Of 64 KiB, for ever: it does not grow with the speed of the connection."""


def asked() -> pb.DraftRequest:
    """About 20 KB that ask for over 200 KB."""
    asks = (ask_for(CONTEXT, 4, 16, session_id=session) for session in range(300))
    return pb.DraftRequest(entries=[draft_ask_to_entry(ask) for ask in asks])


async def read_all(call: grpc.aio.StreamStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_router_that_does_not_read_loses_its_stream_and_no_other_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = ServerConfig(max_unread_seconds=0.5)
    async with (
        draft_peer(law_drafter(LAW), config=config) as peer,
        grpc.aio.insecure_channel(peer.server.address, SMALL_WINDOW) as channel,
    ):
        call = pb_grpc.DraftServiceStub(channel).Draft()
        for _ in range(3):
            await call.write(asked())
        await until(lambda: "a client did not read its stream" in caplog.messages)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_all(call)
        assert (await peer.talk.ask(ask_for(CONTEXT, 4))).reason == "LENGTH"
    error = from_rpc_error(failure.value)
    assert isinstance(error, NotRead)
    assert error.message.startswith("server.max_unread_seconds")
    assert "continuation" not in error.message
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
