"""Metrics on a port for Prometheus, which asks for them. Needs `prometheus-client`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from specmesh.runtime.config import ConfigError
from specmesh.runtime.telemetry.instruments import Family, HistogramPoint
from specmesh.runtime.telemetry.names import prometheus_label


class PrometheusPort:
    """Answers from a thread of its own until `stop`."""

    def __init__(self, host: str, port: int, *, collect: Callable[[], list[Family]], resource: dict[str, str]) -> None:
        """`host` as configured, an IPv6 address in [ ]. Raises `ConfigError` when the port cannot be had."""
        registry = CollectorRegistry()
        registry.register(FamilyCollector(collect, resource))
        try:
            self._server, self._thread = start_http_server(port, host.strip("[]"), registry)
        except OSError as error:
            raise ConfigError(f"telemetry.prometheus_port: cannot listen on {host}:{port}: {error.strerror}") from None
        self.port: int = self._server.server_port

    def stop(self) -> None:
        """No more answers. Blocks for a moment."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class FamilyCollector(Collector):
    """What `collect` gives, as `prometheus_client` takes it."""

    def __init__(self, collect: Callable[[], list[Family]], resource: dict[str, str]) -> None:
        self._collect = collect
        self._resource = resource

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before it is asked for."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Everything, and who says it."""
        target = GaugeMetricFamily(
            "target_info", "The service", labels=[prometheus_label(key) for key in self._resource]
        )
        target.add_metric(list(self._resource.values()), 1)
        yield target
        for family in self._collect():
            yield _family(family)


def _family(family: Family) -> Metric:
    metric = family.metric
    labels = [prometheus_label(attribute) for attribute in metric.attributes]
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.prometheus, metric.meaning, labels=labels)
        for point in family.points:
            assert isinstance(point, HistogramPoint)
            histogram.add_metric(point.values, _buckets(metric.buckets, point), point.sum)
        return histogram
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    numbers = make(metric.prometheus, metric.meaning, labels=labels)
    for number in family.points:
        assert not isinstance(number, HistogramPoint)
        numbers.add_metric(number.values, number.value)
    return numbers


def _buckets(bounds: Sequence[float], point: HistogramPoint) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Counts up to each bound, with the exemplars that belong to them."""
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for index, (name, count) in enumerate(zip(names, accumulate(point.counts), strict=True)):
        found = point.exemplars.get(index)
        if found is None:
            buckets.append((name, count))
        else:
            ids = {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}
            buckets.append((name, count, Exemplar(ids, found.value, found.time_ns / 1e9)))
    return buckets
