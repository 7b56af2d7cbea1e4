"""A router that dies before the first token: a call ends by its deadline, or is done by another router."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from scripted_router import DRAWN_SEED, Script, scripted_router, text_of

HEAD_BYTES = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
ACK = 1


@contextmanager
def dying_router() -> Iterator[str]:
    """Takes one request and closes its connection then, as the kernel does for a process that has died.

    Nobody listens there afterwards. The few frames of HTTP/2 that this needs are written out: no server of gRPC's can
    be made to die within a process.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    thread = threading.Thread(target=_take_one_and_die, args=(listener,))
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join()


def _take_one_and_die(listener: socket.socket) -> None:
    with listener, listener.accept()[0] as connection, connection.makefile("rb") as read:
        listener.close()
        connection.sendall(_frame(SETTINGS, 0))
        assert read.read(len(PREFACE)) == PREFACE
        kinds: set[int] = set()
        while not {HEADERS, DATA} <= kinds:
            head = read.read(HEAD_BYTES)
            payload = read.read(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            kinds.add(kind)
            if kind in (SETTINGS, PING) and not flags & ACK:
                connection.sendall(_frame(kind, ACK, payload if kind == PING else b""))


def _frame(kind: int, flags: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags, 0, 0, 0, 0]) + payload


CALLS = """
import sys
from specmesh.client import Client, SpecMeshError

kind, target = sys.argv[1:]
with Client(target, timeout=4) as client:
    try:
        if kind == "generate":
            print([client.generate("x", max_output_tokens=2).text for _ in range(3)])
        else:
            client.list_models()
    except SpecMeshError as error:
        print(type(error).__name__)
"""
"""Run in a process of their own: where grpc.aio is in use its threads carry the blocking calls along as well."""


def printed(kind: str, target: str) -> str:
    command = [sys.executable, "-c", CALLS, kind, target]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()


@pytest.mark.parametrize("kind", ["generate", "list"])
def test_a_blocking_call_ends_when_its_router_dies_and_none_comes(kind: str) -> None:
    with dying_router() as address:
        assert printed(kind, address) == "Unavailable"


def test_a_blocking_call_is_repeated_at_another_router() -> None:
    """C41. Of two addresses, which calls take in turn: what the one that died had is done by the other."""
    with scripted_router(Script()) as alive, dying_router() as dying:
        assert printed("generate", f"ipv4:{dying},{alive}") == str([text_of(DRAWN_SEED, 2)] * 3)
