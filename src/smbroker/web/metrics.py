"""`/metrics` for Prometheus: one table of names, each made of the same figures that `/v1/stats` shows.

docs/reference/metrics.md lists them, by a test. Imported when somebody first asks.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[tuple[str, ...], float]


class Row(NamedTuple):
    name: str
    kind: str  # counter, gauge or histogram
    labels: tuple[str, ...]
    help: str
    samples: Callable[[dict[str, Any]], Iterable[Any]]


def _by_name(key: str) -> Callable[[dict[str, Any]], list[Sample]]:
    return lambda found: [((name,), value) for name, value in sorted(found[key].items())]


def _one(key: str) -> Callable[[dict[str, Any]], list[Sample]]:
    return lambda found: [((), found[key])]


def _log(key: str) -> Callable[[dict[str, Any]], list[Any]]:
    return lambda found: [((), found["log"][key])] if found["log"] else []


def _pipelines(key: str, scale: float = 1.0) -> Callable[[dict[str, Any]], list[Sample]]:
    """What is not a number yet is left out."""
    return lambda found: [
        ((str(one.get("name")),), one[key] * scale)
        for one in found["pipelines"]["pipelines"]
        if isinstance(one.get(key), int | float)
    ]


def _running(found: dict[str, Any]) -> list[Sample]:
    told = found["pipelines"]
    return [((str(one.get("name")),), told["running"] and one.get("state") == "running") for one in told["pipelines"]]


METRICS = (
    Row("smb_uptime_seconds", "gauge", (), "Time since the broker was started", _one("uptime")),
    Row("smb_received_total", "counter", ("dialect",), "Messages published", _by_name("received")),
    Row("smb_delivered_total", "counter", ("dialect",), "Messages given to subscribers", _by_name("delivered")),
    Row("smb_received_bytes_total", "counter", (), "Bytes of the payloads published", _one("bytes_in")),
    Row("smb_sent_bytes_total", "counter", (), "Bytes sent over UDP and TCP", _one("bytes_out")),
    Row("smb_dropped_total", "counter", ("reason",), "Input refused or malformed, and the like", _by_name("dropped")),
    Row(
        "smb_undeliverable_total",
        "counter",
        ("dialect", "reason"),
        "Messages that did not fit a subscriber's dialect, once for each subscriber",
        lambda found: [((one["dialect"], one["reason"]), one["count"]) for one in found["undeliverable"]],
    ),
    Row("smb_ended_total", "counter", ("reason",), "Subscribers that the broker gave up", _by_name("ended")),
    Row("smb_not_logged_total", "counter", (), "Messages relayed while the log was unavailable", _one("not_logged")),
    Row("smb_connections", "gauge", ("dialect",), "TCP connections", _by_name("connections_by_dialect")),
    Row("smb_subscriptions", "gauge", ("dialect",), "Subscriptions", _by_name("subscriptions")),
    Row("smb_streams", "gauge", (), "HTTP streams", _one("streams")),
    Row("smb_outbox_bytes", "gauge", (), "Bytes that wait for TCP subscribers", _one("outbox_bytes")),
    Row(
        "smb_log_up",
        "gauge",
        (),
        "1 while the log takes messages, 0 while it cannot; absent without a log",
        lambda found: [((), found["log"]["error"] is None)] if found["log"] else [],
    ),
    Row("smb_log_first_offset", "gauge", (), "The first offset that is kept", _log("first_offset")),
    Row("smb_log_next_offset", "gauge", (), "The offset after the last that is on disk", _log("next_offset")),
    Row("smb_log_bytes", "gauge", (), "Bytes of the log on disk", _log("bytes")),
    Row("smb_log_queued_bytes", "gauge", (), "About what waits for the disk", _log("queued_bytes")),
    Row("smb_log_append_seconds", "histogram", (), "Time of a commit's write and sync", _log("append_seconds")),
    Row(
        "smb_log_durable_seconds",
        "histogram",
        (),
        "Time from the arrival of a commit's oldest message until it was on disk",
        _log("durable_seconds"),
    ),
    Row("smb_pipeline_up", "gauge", ("pipeline",), "1 while a pipeline runs", _running),
    Row(
        "smb_pipeline_rows_per_second", "gauge", ("pipeline",), "Rows of its last batch", _pipelines("rows_per_second")
    ),
    Row("smb_pipeline_batch_seconds", "gauge", ("pipeline",), "Its last batch's time", _pipelines("batch_ms", 0.001)),
    Row("smb_pipeline_backlog", "gauge", ("pipeline",), "Messages that it has not read yet", _pipelines("backlog")),
    Row(
        "smb_topic_messages_total",
        "counter",
        ("topic",),
        "Messages of the busiest topics, web.metric_topics of them",
        lambda found: [((one["topic"],), one["count"]) for one in found["topics"]],
    ),
)


def text(figures: dict[str, Any]) -> bytes:
    """`figures` are those of `/v1/stats`, with `pipelines` and `topics` as their own calls give them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(figures))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, figures: dict[str, Any]) -> None:
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        for row in METRICS:
            yield _family(row, row.samples(self._figures))


def _family(row: Row, samples: Iterable[Any]) -> Metric:
    if row.kind == "histogram":
        histogram = HistogramMetricFamily(row.name, row.help)
        for _, found in samples:
            histogram.add_metric([], _buckets(found), found["sum"])
        return histogram
    made = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
    family = made(row.name, row.help, labels=row.labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family


def _buckets(found: dict[str, Any]) -> list[tuple[str, float]]:
    """Prometheus counts upwards."""
    buckets, count = [], 0
    for bound, more in zip([*map(str, found["bounds"]), "+Inf"], found["counts"], strict=True):
        count += more
        buckets.append((bound, float(count)))
    return buckets
