"""Telemetry from a configuration: off by default, and clear about what it cannot do."""

import asyncio
import socket
import subprocess
import sys
import urllib.request

import pytest
from pydantic import ValidationError

from specmesh.runtime.config import ConfigError
from specmesh.runtime.telemetry.config import TelemetryConfig
from specmesh.runtime.telemetry.prometheus import PrometheusPort
from specmesh.runtime.telemetry.setup import NO_TELEMETRY, open_telemetry


@pytest.mark.parametrize("endpoint", ["http://collector:4317", "https://c.example:443/", "10.0.0.1:4317", "[::1]:4317"])
def test_endpoints_are_a_host_and_a_port(endpoint: str) -> None:
    assert TelemetryConfig(otlp_endpoint=endpoint).enabled


@pytest.mark.parametrize("endpoint", ["collector", "ftp://c:1", "http://c:4317/v1/traces", "", "c d:1", "::1:4317"])
def test_other_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="otlp_endpoint"):
        TelemetryConfig(otlp_endpoint=endpoint)


def test_headers_need_somebody_to_send_them_to_and_are_not_shown() -> None:
    with pytest.raises(ValidationError, match="otlp_headers"):
        TelemetryConfig.model_validate({"otlp_headers": {"key": "secret"}})
    config = TelemetryConfig.model_validate({"otlp_endpoint": "c:1", "otlp_headers": {"key": "secret"}})
    assert "secret" not in repr(config)


async def test_it_is_off_by_default_and_intercepts_nothing() -> None:
    async with open_telemetry("router", TelemetryConfig()) as telemetry:
        assert telemetry is NO_TELEMETRY
        assert telemetry.server_interceptors() == []
        assert telemetry.client_interceptors() == []


async def test_nothing_of_it_runs_on_when_the_service_has_ended() -> None:
    async with open_telemetry("router", TelemetryConfig(prometheus_port=0, prometheus_host="127.0.0.1")):
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


WITHOUT = """
import runpy, sys
missing = sys.argv[1]
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
sys.argv[1:] = ["--set", sys.argv[2]]
runpy.run_module("specmesh.draft", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("setting", "module"),
    [("telemetry.otlp_endpoint=c:1", "opentelemetry"), ("telemetry.prometheus_port=0", "prometheus_client")],
)
def test_a_missing_package_is_named_with_what_to_install(setting: str, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, module, setting], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2, done.stderr
    [name, _] = setting.split("=")
    assert f"specmesh draft: {name}: needs packages that are not installed" in done.stderr
    assert "pip install 'specmesh[otel]'" in done.stderr


def has_ipv6() -> bool:
    """Containers often have none."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", *(pytest.param(host, marks=IPV6) for host in ("[::1]", "[::]"))]
)
def test_every_host_that_a_configuration_takes_is_listened_on(host: str) -> None:
    config = TelemetryConfig(prometheus_port=0, prometheus_host=host)
    port = PrometheusPort(config.prometheus_host, 0, collect=list, resource={"service.name": "draft"})
    try:
        there = "[::1]" if host.startswith("[") else host
        with urllib.request.urlopen(f"http://{there}:{port.port}/metrics", timeout=10) as answer:
            assert b"target_info" in answer.read()
    finally:
        port.stop()


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = TelemetryConfig(prometheus_port=port, prometheus_host="127.0.0.1")
        with pytest.raises(ConfigError, match=rf"prometheus_port: cannot listen on 127\.0\.0\.1:{port}"):
            async with open_telemetry("draft", config):
                pass


def test_nothing_of_it_is_imported_by_a_service_without_it() -> None:
    """Checked by the imports of the package itself: exporters are imported where they are asked for."""
    code = "import sys, specmesh.router.__main__, specmesh.draft.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith(("opentelemetry", "prometheus_client"))] == []
