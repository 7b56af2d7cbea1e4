"""Check that the committed stubs work with the oldest runtimes supported; only the client's wheel is installed.

A server that refuses and one that answers, over real gRPC; what the client's wheel sends must arrive whole.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import grpc

from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1 import router_service_pb2_grpc as pb_grpc


class Echo(pb_grpc.RouterServiceServicer):
    """Answers a request's own token ids."""

    def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        """One delta, then the end."""
        yield pb.GenerateResponse(delta=pb.OutputDelta(token_ids=request.tokens.ids, text="é"))
        yield pb.GenerateResponse(finished=pb.GenerationFinished(finish_reason=pb.FINISH_REASON_STOP))


def main() -> None:
    """Stop with a message when something is not as sent."""
    server = grpc.server(ThreadPoolExecutor(1))
    pb_grpc.add_RouterServiceServicer_to_server(Echo(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ids = [0, 5, 49151, 2**32 - 1]
    request = pb.GenerateRequest(tokens=pb.TokenIds(ids=ids), sampling=pb.SamplingParams(temperature=0))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = pb_grpc.RouterServiceStub(channel)  # type: ignore[no-untyped-call]
        delta, finished = stub.Generate(request, timeout=10)
    server.stop(None)
    if list(delta.delta.token_ids) != ids or finished.finished.finish_reason != pb.FINISH_REASON_STOP:
        sys.exit("oldest runtimes: what arrived is not what was sent")
    if not request.sampling.HasField("temperature") or request.sampling.HasField("top_p"):
        sys.exit("oldest runtimes: absent and zero are not told apart")
    import specmesh.client

    sys.stdout.write(
        f"{specmesh.client.__name__} works with grpcio {version('grpcio')}, protobuf {version('protobuf')}\n"
    )


if __name__ == "__main__":
    main()
