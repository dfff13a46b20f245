"""`/metrics`: the same figures as `/v1/stats`, under names that are documented, and a dashboard that uses no others."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flow.house import Broker, wait_for
from smbroker.web.metrics import METRICS
from web.calls import KINDS, get, post_lines

ROOT = Path(__file__).parent.parent.parent
NAMES = {row.name for row in METRICS}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = tmp_path_factory.mktemp("settings") / "smb.toml"
    settings.write_text("[web]\nmetric_topics = 2\n")
    with Broker("--config", str(settings), kinds=KINDS) as made:
        yield made


def samples(broker: Broker) -> dict[tuple[str, tuple[str, ...]], float]:
    said = get(broker, "/metrics")
    assert said.status == 200
    assert said.headers["content-type"].startswith("text/plain")
    return {
        (one.name, tuple(one.labels.values())): one.value
        for family in text_string_to_metric_families(said.body.decode())
        for one in family.samples
    }


def test_the_page_and_the_metrics_agree(broker: Broker) -> None:
    peer = broker.udp()
    peer.send(b"smetric/#")
    post_lines(
        broker, *({"topic": "metric/a", "payload": "x" * 600} for _ in range(3)), {"topic": "metric/b", "payload": "1"}
    )
    assert peer.receive() == b"metric/b;1"
    peer.send(b"\x01no-subtopic\x02")
    wait_for(lambda: get(broker, "/v1/stats").json["dropped"])
    told, found = get(broker, "/v1/stats").json, samples(broker)
    assert found["smb_received_total", ("http",)] == told["received"]["http"] == 4
    assert found["smb_delivered_total", ("semicolon",)] == told["delivered"]["semicolon"] == 1
    assert found["smb_received_bytes_total", ()] == told["bytes_in"] == 1_801
    assert found["smb_sent_bytes_total", ()] == told["bytes_out"] == len(b"metric/b;1")
    assert found["smb_dropped_total", ("topic_no_subtopic",)] == told["dropped"]["topic_no_subtopic"] == 1
    assert found["smb_undeliverable_total", ("semicolon", "too_long")] == told["undeliverable"][0]["count"] == 3
    assert found["smb_subscriptions", ("semicolon",)] == 1
    assert found["smb_log_next_offset", ()] == told["log"]["next_offset"] == 4
    assert found["smb_log_up", ()] == 1
    assert found["smb_log_durable_seconds_count", ()] == sum(told["log"]["durable_seconds"]["counts"])
    assert found["smb_log_append_seconds_bucket", ("+Inf",)] == sum(told["log"]["append_seconds"]["counts"])
    assert found["smb_topic_messages_total", ("metric/a",)] == 3


def test_topics_have_so_many_series_and_no_more(broker: Broker) -> None:
    post_lines(
        broker,
        *({"topic": f"series/{n}", "payload": "1"} for n in range(9)),
        *({"topic": 'busy/"\n', "payload": "1"},) * 9,
    )
    found = {
        labels[0]: value for (name, labels), value in samples(broker).items() if name == "smb_topic_messages_total"
    }
    assert len(found) == 2
    assert found['busy/"\n'] == 9


def test_pipelines_have_their_figures(broker: Broker) -> None:
    one = {"name": "a", "state": "running", "rows_per_second": 5.5, "batch_ms": 250, "backlog": None}
    file = broker.data / "pipelines.json"
    file.write_text(json.dumps({"updated": "2999-01-01T00:00:00Z", "pipelines": [one]}))
    found = samples(broker)
    file.unlink()
    assert found["smb_pipeline_up", ("a",)] == 1
    assert found["smb_pipeline_rows_per_second", ("a",)] == 5.5
    assert found["smb_pipeline_batch_seconds", ("a",)] == 0.25
    assert ("smb_pipeline_backlog", ("a",)) not in found


def test_without_a_log_its_figures_are_absent() -> None:
    with Broker("--no-log", kinds=KINDS) as relay:
        assert not [name for name, _ in samples(relay) if name.startswith("smb_log")]


def test_nothing_but_the_table_is_told(broker: Broker) -> None:
    told = re.findall(r"^# TYPE (\S+) (\S+)$", get(broker, "/metrics").body.decode(), re.MULTILINE)
    assert told == [(row.name, row.kind) for row in METRICS]


# --- documents ---


def test_every_metric_is_documented_as_it_is() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = [row.split(" | ") for row in re.findall(r"^\| (`smb_.*) \|$", page, re.MULTILINE)]
    documented = [(name.strip("`"), kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows]
    assert documented == [(row.name, row.kind, row.labels) for row in METRICS]


def expressions(thing: Any) -> Iterator[str]:
    if isinstance(thing, dict):
        yield from (value for key, value in thing.items() if key in ("expr", "query") and isinstance(value, str))
        for value in thing.values():
            yield from expressions(value)
    elif isinstance(thing, list):
        for value in thing:
            yield from expressions(value)


def test_the_dashboard_is_valid_and_uses_what_there_is() -> None:
    board = json.loads((ROOT / "contrib" / "grafana.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) > 10
    used = {name for text in expressions(board) for name in re.findall(r"\bsmb_\w+", text)}
    assert {re.sub("_bucket$", "", name) for name in used} == NAMES
