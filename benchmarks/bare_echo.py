"""The floor under a step: a bare grpc.aio stream that echoes 100 bytes, to one process and to two in turn.

What Python's gRPC costs on this machine at this moment; the mesh's own overhead is to be read beside it. In a mesh
every process rests while another works, and one that has rested is slower to wake: so also with pauses of 0.2 ms,
which are taken off again. Prints JSON.
"""

import specmesh.runtime.environment  # noqa: F401  first: as the services have it

# isort: split
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio

METHOD = "/bare.Echo/Echo"
WARM_UP, ROUNDS = 500, 2500
PAUSE_SECONDS = 0.0002
SERVE = "serve"


def work(seconds: float) -> None:
    """Keep a core busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        continue


async def _echo(messages: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
    """The first 8 bytes say for how many nanoseconds to work before answering."""
    async for message in messages:
        work(int.from_bytes(message[:8], "little") / 1e9)
        await context.write(message)


async def serve() -> None:
    """Echo until killed; the port is the one line of output."""
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Echo", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def round_trips(ports: list[int], pause: float) -> float:
    """Median milliseconds to ask every port once, in turn; both sides work for `pause` seconds before they write."""
    message = round(pause * 1e9).to_bytes(8, "little") + bytes(92)
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports]
    calls: list[grpc.aio.StreamStreamCall[bytes, bytes]] = [channel.stream_stream(METHOD)() for channel in channels]
    spent = []
    for _ in range(WARM_UP + ROUNDS):
        began = time.perf_counter()
        for call in calls:
            work(pause)
            await call.write(message)
            await call.read()
        spent.append(time.perf_counter() - began)
    for call, channel in zip(calls, channels, strict=True):
        call.cancel()
        await channel.close()
    return (statistics.median(spent[WARM_UP:]) - 2 * len(ports) * pause) * 1e3


def bare_echo_ms() -> dict[str, float]:
    """Median milliseconds of one hop and of two, and of two between pauses."""
    command = [sys.executable, __file__, SERVE]
    servers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        ports = [int(server.stdout.readline()) for server in servers if server.stdout is not None]
        cases = {"one_hop": (1, 0.0), "two_hops": (2, 0.0), "two_hops_between_pauses": (2, PAUSE_SECONDS)}
        return {name: round(asyncio.run(round_trips(ports[:hops], pause)), 4) for name, (hops, pause) in cases.items()}
    finally:
        for server in servers:
            server.kill()
            server.communicate()


if __name__ == "__main__":
    if sys.argv[1:] == [SERVE]:
        asyncio.run(serve())
    else:
        print(json.dumps(bare_echo_ms(), indent=2))
