"""Pods of a rendered chart as processes of this machine, each the first process of its own namespace.

What a kubelet does is done here: volumes of configuration, secrets and claims are mounted where the pod says, the root
is read-only, the user is the pod's, the command is the image's entry point with the pod's arguments, probes ask what
they ask, and a pod ends by its preStop command, SIGTERM and the grace period. What is not: pods share the network, so
each has a loopback address of its own, given to the service by its environment; and the user may read (not write)
every file, because the interpreter of the tests may lie in somebody's closed home.
"""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from helm_charts import ROOT, Object, container, of_kind, pod

SERVING = health_pb2.HealthCheckResponse.SERVING
START_SECONDS = 150.0


@dataclass
class Node:
    """This machine: the objects that were rendered, and what secrets and claims hold."""

    folder: Path
    objects: Sequence[Object]
    secrets: Mapping[str, Path]
    claims: Mapping[str, Path]
    addresses: dict[str, str] = field(default_factory=dict)
    """By name of a service."""

    def give_address(self, name: str, *services: str) -> str:
        """A loopback address, found under these names too."""
        # Test processes that run side by side have a network each.
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        address = f"127.0.{3 + number}.{10 + len(self.addresses)}"
        for each in (name, *services):
            self.addresses[each] = address
        return address

    def source(self, volume: Object) -> Path | None:
        """The folder behind a volume; None for an empty one."""
        if "emptyDir" in volume:
            return None
        if "secret" in volume:
            return self.secrets[volume["secret"]["secretName"]]
        if "persistentVolumeClaim" in volume:
            return self.claims[volume["persistentVolumeClaim"]["claimName"]]
        name = volume["configMap"]["name"]
        folder = self.folder / "config" / name
        folder.mkdir(parents=True, exist_ok=True)
        for key, text in of_kind(self.objects, "ConfigMap")[name]["data"].items():
            (folder / key).write_text(text)
        return folder


class PodProcess:
    """One pod of one container."""

    def __init__(self, node: Node, name: str, spec: Object, address: str, *more_environment: tuple[str, str]) -> None:
        """Starts it."""
        [self.container] = spec["containers"]
        self.name, self.spec, self.address = name, spec, address
        folder = node.folder / name
        folder.mkdir(parents=True)
        self._log = (folder / "log").open("wb+")
        self._output = (folder / "output").open("wb+")
        script = folder / "start.sh"
        script.write_text("\n".join(["set -eu", *_mounts(node, spec, self.container, folder), self._command()]))
        environment = {each["name"]: each["value"] for each in self.container["env"] if "value" in each}
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "sh", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._log,
            env=environment | {"PATH": path, "OMP_NUM_THREADS": "1"} | dict(more_environment),
        )

    def _command(self) -> str:
        user, own = self.spec["securityContext"], self.container["securityContext"]
        privileges = [f"setpriv --reuid {user['runAsUser']} --regid {user['runAsGroup']} --clear-groups"]
        if not own["allowPrivilegeEscalation"]:
            privileges.append("--no-new-privs")
        if own["capabilities"]["drop"] == ["ALL"]:
            privileges += [f"--{each}=-all,+dac_read_search" for each in ("inh-caps", "ambient-caps", "bounding-set")]
        return f"exec {' '.join(privileges)} -- {shlex.join([*entrypoint(), *self.container['args']])}"

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode()

    async def ready(self) -> None:
        """Until startup and readiness probes say so; liveness must hold all the while."""
        async with grpc.aio.insecure_channel(f"{self.address}:{self._port('startupProbe')}") as channel:
            async with asyncio.timeout(START_SECONDS):
                while not await self._probe(channel, "startupProbe"):
                    self._must_live()
                    await asyncio.sleep(0.1)
                while not await self._probe(channel, "readinessProbe"):
                    self._must_live()
                    assert await self._probe(channel, "livenessProbe")
                    await asyncio.sleep(0.1)

    def _must_live(self) -> None:
        assert self.process.poll() is None, self.log()

    def _port(self, probe: str) -> int:
        return int(self.container[probe]["grpc"]["port"])

    async def _probe(self, channel: grpc.aio.Channel, probe: str) -> bool:
        request = health_pb2.HealthCheckRequest(service=self.container[probe]["grpc"]["service"])
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                request, timeout=self.container[probe]["timeoutSeconds"]
            )
        except grpc.aio.AioRpcError:
            return False
        return answer.status == SERVING

    @property
    def pid(self) -> int:
        """Of the service, outside its namespace."""
        [child] = self._children()
        return child

    def _children(self) -> list[int]:
        file = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    def end(self) -> tuple[int, float]:
        """As a kubelet ends a pod: exit status, and seconds from SIGTERM. A pod that needs a SIGKILL fails the test."""
        started = time.monotonic()
        hook = self.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        if hook:
            subprocess.run(hook, check=True)
        asked = time.monotonic()
        os.kill(self.pid, signal.SIGTERM)
        grace = self.spec["terminationGracePeriodSeconds"] - (asked - started)
        return self.process.wait(grace), time.monotonic() - asked

    def kill(self) -> None:
        """SIGKILL, as a node that fails: with the first process its namespace ends."""
        for child in self._children():
            os.kill(child, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._log.close()
        self._output.close()


def entrypoint() -> list[str]:
    """Of every image."""
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    found = set(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE))
    assert len(found) == 1
    return list(json.loads(found.pop()))


def _mounts(node: Node, spec: Object, main: Object, folder: Path) -> list[str]:
    """Shell lines: volumes under /etc, /srv, /var/cache and /tmp, all else read-only."""
    volumes = {volume["name"]: node.source(volume) for volume in spec["volumes"]}
    etc = folder / "etc"
    etc.mkdir()
    hosts = [f"{address} {name}" for name, address in node.addresses.items()]
    (etc / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts]) + "\n")
    owner = f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}"
    lines = ["mount --make-rprivate /", "mount --rbind / /mnt"]
    lines += [f"mount -t tmpfs tmpfs {top}" for top in ("/srv", "/var/cache")]
    for mount in main["volumeMounts"]:
        path, source = mount["mountPath"], volumes[mount["name"]]
        if source is None:
            lines += [f"mkdir -p {path}", f"mount -t tmpfs tmpfs {path}", f"chown {owner} {path}"]
            continue
        source = source / mount.get("subPath", "")
        if path.startswith("/etc/"):
            (etc / path.removeprefix("/etc/")).mkdir(parents=True)
        elif source.is_file():
            lines += [f"mkdir -p {Path(path).parent}", f"touch {path}"]
        else:
            lines += [f"mkdir -p {path}"]
        lines += [f"mount --bind {shlex.quote(f'/mnt{source}')} {path}"]
    in_etc = [line for line in lines if line.rpartition(" ")[2].startswith("/etc/")]
    rest = [line for line in lines if line not in in_etc]
    overlay = f"mount -t overlay overlay -o lowerdir={shlex.quote(f'/mnt{etc}')}:/etc /etc"
    # What the tests themselves run from may lie below a folder that a volume hides.
    for needed in sorted({str(ROOT), sys.prefix, sys.base_prefix}):
        rest += [f"[ -e {needed} ] || {{ mkdir -p {needed} && mount --rbind /mnt{needed} {needed}; }}"]
    read_only = ["mount -o remount,bind,ro /"] if main["securityContext"]["readOnlyRootFilesystem"] else []
    return [*rest, overlay, *in_etc, "umount -l /mnt", *read_only, "cd /"]


@contextlib.contextmanager
def watchdog(seconds: float, *pods: PodProcess) -> Iterator[None]:
    """Kill the pods when a test hangs."""
    timer = threading.Timer(seconds, lambda: [each.kill() for each in pods])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def deployed(objects: Sequence[Object], name: str) -> tuple[Object, Object]:
    """A deployment's pod and container."""
    deployment = of_kind(objects, "Deployment")[name]
    return pod(deployment), container(deployment)
