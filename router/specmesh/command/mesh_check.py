"""Every mistake in the configuration of a mesh, said before anything is started."""

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specmesh.command.demo_assets import demo_mesh
from specmesh.command.mesh_config import DEFAULT_PORT, POOL_NAME, DraftProcess, MeshConfig
from specmesh.draft.config import DraftConfig
from specmesh.router.callers import Callers
from specmesh.router.config import RouterConfig
from specmesh.runtime.config import ConfigError, ConfigModel, validated
from specmesh.runtime.given import Given, Keys
from specmesh.runtime.serving import check_server
from specmesh.runtime.telemetry.setup import check_packages
from specmesh.verifier.config import VerifierConfig

FILLED_IN = ("verifiers", "pools")
PUBLIC_PORT = "router.server.port"
"""Whoever starts the mesh looks whether it is free, and knows what to do when it is not."""
PLACEHOLDER = "127.0.0.1:1"
"""Until the services are there and say where."""
SERVICES: Mapping[type[ConfigModel], str] = {
    VerifierConfig: "specmesh.v1.VerifierService",
    DraftConfig: "specmesh.v1.DraftService",
    RouterConfig: "specmesh.v1.RouterService",
}


def mesh_given(path: Path | None, port: int | None, dtype: str | None) -> Given:
    """The file's mesh or the demo's, with what flags say, each value with its origin. Raises `ConfigError`."""
    given = Given()
    if path is not None:
        given.add_file(path)
    else:
        given.add_table(tree_of(demo_mesh()), "the demo's mesh")
    if dtype is not None and _are_sections(given.tree, ("verifier",)):
        given.add_table({"verifier": {"dtype": dtype}}, "--dtype")
    if port is not None and _are_sections(given.tree, ("router", "server")):
        given.add_table({"router": {"server": {"port": port}}}, "--port")
    return given


def _are_sections(tree: Mapping[str, Any], keys: Keys) -> bool:
    """Whether a flag's key can be there; where not, the file's mistake is told with all others."""
    for key in keys:
        tree = tree.get(key, {})
        if not isinstance(tree, Mapping):
            return False
    return True


def listening_fault(host: str, port: int) -> str:
    """Why nothing can listen there now; empty when something can."""
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        with socket.create_server((host.strip("[]"), port), family=family):
            return ""
    except OSError as error:
        return str(error.strerror).partition(" (")[0]  # the address stands in parentheses behind it


def tree_of(config: MeshConfig) -> dict[str, Any]:
    """As a file would say it."""
    drafts = [{"pool": draft.pool, "trust": draft.trust, **draft.settings} for draft in config.drafts]
    return {"verifier": config.verifier, "drafts": drafts, "router": config.router}


def check_mesh(mesh: Given, environ: Mapping[str, str]) -> RouterConfig:
    """The router's configuration, its services apart; `environ` is what the services will see.

    Raises `ConfigError` with all mistakes of all sections.
    """
    faults: list[str] = []
    try:
        validated(MeshConfig, mesh)
    except ConfigError as error:
        faults += error.faults
    router = mesh.tree.get("router")
    for key in FILLED_IN:
        if isinstance(router, Mapping) and key in router:
            faults.append(mesh.fault(("router", key), "`specmesh up` fills it in"))
    ports: dict[tuple[str, int], str] = {}
    for section in _sections(mesh, environ):
        faults += section.faults(ports)
    if faults:
        raise ConfigError(*dict.fromkeys(faults))
    return validated(RouterConfig, _router(mesh, environ))


@dataclass(frozen=True, slots=True)
class _Section:
    """What one process will be told: its part of the mesh's configuration over the environment."""

    keys: Keys
    cls: type[VerifierConfig] | type[DraftConfig] | type[RouterConfig]
    given: Given

    def faults(self, ports: dict[tuple[str, int], str]) -> list[str]:
        """Its mistakes; `ports` are those that other sections listen on, by host, and gets this one's."""
        try:
            config: VerifierConfig | DraftConfig | RouterConfig = validated(self.cls, self.given, self.keys, here=True)
        except ConfigError as error:
            return list(error.faults)
        try:
            check_server(config.server, [SERVICES[self.cls]])
            check_packages(config.telemetry)
            if isinstance(config, RouterConfig):
                Callers(config)
        except ConfigError as error:
            return [self.given.fault((), fault, self.keys) for fault in error.faults]
        return list(self._taken(config, ports))

    def _taken(
        self, config: VerifierConfig | DraftConfig | RouterConfig, ports: dict[tuple[str, int], str]
    ) -> Iterator[str]:
        server, telemetry = config.server, config.telemetry
        listening = {
            ("server", "port"): (server.host, server.port),
            ("server", "health_port"): (server.host, server.health_port),
            ("telemetry", "prometheus_port"): (telemetry.prometheus_host, telemetry.prometheus_port),
        }
        for keys, (host, port) in listening.items():
            if not port:
                continue
            name = ".".join((*self.keys, *keys))
            other = ports.setdefault((host, port), name)
            if other != name:
                yield self.given.fault(keys, f"{port} is {other} too", self.keys)
            elif name != PUBLIC_PORT and (fault := listening_fault(host, port)):
                yield self.given.fault(keys, f"cannot listen on {host}:{port}: {fault}", self.keys)


def _sections(mesh: Given, environ: Mapping[str, str]) -> Iterator[_Section]:
    verifier = Given()
    if "verifier" not in mesh.tree:
        verifier.add_table(MeshConfig().verifier, "the default")
    verifier.add_environment(environ, "SPECMESH_VERIFIER")
    verifier.add(mesh, ("verifier",))
    yield _Section(("verifier",), VerifierConfig, verifier)
    for index, draft in enumerate(_drafts(mesh)):
        given = Given()
        given.add_environment(environ, "SPECMESH_DRAFT")
        settings = {key: value for key, value in draft.items() if key not in DraftProcess.model_fields}
        given.add_table(settings, " and ".join(mesh.origins(("drafts",))))
        yield _Section(("drafts", str(index)), DraftConfig, given)
    yield _Section(("router",), RouterConfig, _router(mesh, environ))


def _router(mesh: Given, environ: Mapping[str, str]) -> Given:
    router = Given()
    router.add_table({"server": {"port": DEFAULT_PORT}}, "the default")
    router.add_environment(environ, "SPECMESH_ROUTER")
    router.add(mesh, ("router",))
    drafts = _drafts(mesh)
    pools = dict.fromkeys(pool for draft in drafts if re.fullmatch(POOL_NAME, pool := str(draft.get("pool"))))
    filled_in = [{"name": pool, "addresses": [PLACEHOLDER]} for pool in pools]
    router.add_table({"verifiers": [PLACEHOLDER], "pools": filled_in}, "drafts")
    return router


def _drafts(mesh: Given) -> list[Mapping[str, Any]]:
    """Those that are tables; of what is none the mesh's own form tells."""
    drafts = mesh.tree.get("drafts")
    return [draft for draft in drafts if isinstance(draft, Mapping)] if isinstance(drafts, list) else []
