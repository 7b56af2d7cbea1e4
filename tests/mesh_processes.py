"""Verifier, drafts and router as real processes over real gRPC, for tests of the whole mesh."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mesh_tables import TableFiles

READY_SECONDS = 60.0
END_SECONDS = 20.0


def toml_value(value: object) -> str:
    """A value as `--set` reads it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


class Service:
    """`python -m specmesh.NAME`, ready once `address` has been read."""

    def __init__(self, name: str, folder: Path, **settings: Any) -> None:
        """Starts the process. Settings are dotted with `__`: `server__port=0`."""
        self.name = name
        self._log = (folder / f"{name}-{os.urandom(4).hex()}.log").open("wb+")
        if name == "router":
            settings = {"sessions__hold_out": 0} | settings
        flags = [f"{key.replace('__', '.')}={_flag(value)}" for key, value in settings.items()]
        command = [sys.executable, "-m", f"specmesh.{name}", "--exit-with-stdin"]
        for flag in flags:
            command += ["--set", flag]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        self._address = ""

    @property
    def address(self) -> str:
        """Waits for the ready line."""
        if not self._address:
            watchdog = threading.Timer(READY_SECONDS, self.process.kill)
            watchdog.start()
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            watchdog.cancel()
            if not line:
                raise RuntimeError(f"{self.name} did not become ready:\n{self.log()}")
            self._address = json.loads(line)["address"]
        return self._address

    def log(self) -> str:
        """What it wrote to standard error."""
        self._log.seek(0)
        return self._log.read().decode()

    def terminate(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_SECONDS)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(END_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(END_SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            assert stream is not None
            stream.close()


def pools_of(drafts: Mapping[str, Service]) -> list[dict[str, object]]:
    """The `pools` setting of a router: one pool for each draft, by name."""
    return [{"name": name, "addresses": [draft.address]} for name, draft in drafts.items()]


def patient_router(folder: Path, verifier: Service, pools: Sequence[Mapping[str, object]], **settings: Any) -> Service:
    """A router with policy `fixed` that waits for blocks far longer than they take, so a busy machine cuts none."""
    patient = {
        "policy__name": "fixed",
        "drafts__block_deadline_ms": 5000,
        "drafts__min_deadline_ms": 2000,
    }
    return Service("router", folder, verifiers=[verifier.address], pools=list(pools), **(patient | settings))


@dataclass(frozen=True)
class Running:
    """Addresses of what runs."""

    folder: Path
    tables: TableFiles
    verifier: Service
    drafts: dict[str, Service]
    router: Service

    def pools(self, *names: str) -> list[dict[str, object]]:
        """The `pools` setting of a router that uses these drafts."""
        return pools_of({name: self.drafts[name] for name in names})


def pool_of(service: Service, name: str = "pool", **more: object) -> dict[str, object]:
    """One pool of one draft."""
    return pools_of({name: service})[0] | more


def start_router(mesh: Running, pools: Sequence[Mapping[str, object]], **settings: Any) -> Service:
    """A router of its own over the mesh's verifier, which gives a draft 400 ms."""
    defaults: dict[str, Any] = {"policy__name": "fixed", "drafts__block_deadline_ms": 400, "discovery_seconds": 0.5}
    addresses = {"verifiers": [mesh.verifier.address]} if "verifiers" not in settings else {}
    return Service("router", mesh.folder, pools=list(pools), **(defaults | addresses | settings))


def _flag(value: object) -> str:
    return toml_value(value) if isinstance(value, (Mapping, list, tuple)) else str(value)
