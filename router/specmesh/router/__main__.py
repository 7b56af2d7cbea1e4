"""`python -m specmesh.router`: one router."""

import specmesh.runtime.environment  # noqa: F401  first: gRPC and torch read it when imported

# isort: split
import asyncio
import logging
import sys
from functools import partial

import grpc.aio

from specmesh.router.config import RouterConfig
from specmesh.router.drafts import Drafts
from specmesh.router.limits import Gate
from specmesh.router.policies import make_policy
from specmesh.router.registration import Target
from specmesh.router.service import RouterServicer
from specmesh.router.step import Mesh
from specmesh.router.telemetry import watch_router
from specmesh.router.text import Tokenizer
from specmesh.router.verifier_replica import TokenizerFiles
from specmesh.router.verifiers import Verifiers
from specmesh.router.watching import NO_WATCH, Watch
from specmesh.runtime.contract import ROUTER_SERVICE
from specmesh.runtime.launch import run_service
from specmesh.runtime.serving import MeshServer, announce_ready
from specmesh.runtime.streams import channel
from specmesh.runtime.telemetry.setup import NO_TELEMETRY, Telemetry, open_telemetry
from specmesh.runtime.tls import check_files
from specmesh.v1 import router_service_pb2_grpc as pb_grpc

_log = logging.getLogger(__name__)


class Router:
    """The parts of a router, put together. Create it inside the running event loop."""

    def __init__(self, config: RouterConfig, telemetry: Telemetry = NO_TELEMETRY) -> None:
        if config.tls is not None:
            check_files(config.tls, "tls")
        limits = config.limits
        gate = Gate("limits.max_sessions", limits.max_sessions, limits.max_queued, limits.retry_seconds)
        self._config = config
        self._interceptors = telemetry.client_interceptors()
        self.drafts = Drafts(config, connect=self._connect)
        connect_verifier = partial(self._connect, server_name=config.verifier_server_name)
        self.verifiers = Verifiers(config, connect=connect_verifier, retarget=self._retarget)
        policy = make_policy(config.policy.name, seed=config.policy.seed, settings=config.policy.settings)
        watch: Watch = NO_WATCH
        if telemetry.registry is not None:
            watch = watch_router(
                telemetry.registry,
                config.telemetry.tenants,
                drafts=self.drafts,
                verifiers=self.verifiers,
                gate=gate,
                policy=policy,
                pools=[pool.name for pool in config.pools],
            )
        mesh = Mesh(
            policy,
            self.drafts,
            self.verifiers,
            num_sessions=lambda: gate.num_inside,
            max_run_tokens=config.sessions.max_run_tokens,
            watch=watch,
        )
        self.servicer = RouterServicer(config, mesh, gate)

    def _connect(self, address: str, server_name: str | None = None) -> grpc.aio.Channel:
        """With the certificates as they are now: whoever reconnects follows their rotation."""
        tls = self._config.tls
        if tls is not None and server_name is not None:
            tls = tls.model_copy(update={"server_name": server_name})
        server = self._config.server
        return channel(
            address,
            tls=tls,
            keepalive_seconds=server.keepalive_seconds,
            max_message_bytes=server.max_message_bytes,
            interceptors=self._interceptors,
        )

    def _retarget(self, target: Target, files: TokenizerFiles) -> None:
        if self.servicer.tokenizer is not None:
            self.servicer.tokenizer.close()
        self.servicer.tokenizer = _tokenizer(files)
        self.drafts.retarget(target)
        _log.info("serving a model", extra={"model": target.name, "fingerprint": target.fingerprint})


def _tokenizer(files: TokenizerFiles) -> Tokenizer | None:
    if not files.tokenizer_json:
        return None
    try:
        return Tokenizer(
            files.tokenizer_json,
            chat_template=files.chat_template,
            special_tokens=files.special_tokens,
            eos_token_ids=sorted(files.eos_token_ids),
        )
    except ValueError as error:
        _log.error("text is not served, token ids are", extra={"reason": str(error)})
        return None


async def serve(config: RouterConfig) -> None:
    """Serve until told to stop. Health answers NOT_SERVING until a verifier has been registered."""
    async with open_telemetry("router", config.telemetry) as telemetry:
        await _serve(config, telemetry)


async def _serve(config: RouterConfig, telemetry: Telemetry) -> None:
    router = Router(config, telemetry)
    server = MeshServer(config.server, [ROUTER_SERVICE], telemetry)
    pb_grpc.add_RouterServiceServicer_to_server(router.servicer, server.grpc)  # type: ignore[no-untyped-call]
    await server.start()
    tasks = [
        asyncio.create_task(router.verifiers.run()),
        asyncio.create_task(router.drafts.run()),
        asyncio.create_task(_announce(router, server)),
        asyncio.create_task(server.serve_until_signalled()),
    ]
    try:
        await _first_to_end(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop(0)


async def _announce(router: Router, server: MeshServer) -> None:
    await router.verifiers.ready.wait()
    server.set_serving()
    announce_ready(server.address)


async def _first_to_end(tasks: list["asyncio.Task[None]"]) -> None:
    """Until the server has drained; a part that fails before ends the process with its error."""
    serving = tasks[-1]
    pending = set(tasks)
    while serving in pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


if __name__ == "__main__":
    sys.exit(run_service("router", RouterConfig, serve))
