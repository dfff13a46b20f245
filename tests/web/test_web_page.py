"""What the page lives from: its files, the live stream, clients, pipelines, and who may ask."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import smbroker.web
from flow.house import Broker, wait_for
from flow.lasting import children
from web.calls import KINDS, Events, call, get, post, post_lines

STATIC = Path(smbroker.web.__file__).parent / "static"
OURS = sorted(file for file in STATIC.rglob("*.*") if "vendor" not in file.parts)


@pytest.fixture(scope="module")
def broker() -> Any:
    with Broker(kinds=KINDS) as made:
        yield made


# --- files ---


def test_the_page_comes_with_a_policy_that_allows_our_own_files_alone(broker: Broker) -> None:
    said = get(broker, "/")
    assert said.status == 200
    assert said.headers["content-type"] == "text/html; charset=utf-8"
    policy = said.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_every_file_is_served_and_known_again(broker: Broker) -> None:
    for file in STATIC.rglob("*.*"):
        said = get(broker, f"/static/{file.relative_to(STATIC)}")
        assert (said.status, said.body) == (200, file.read_bytes()), file
        again = get(broker, f"/static/{file.relative_to(STATIC)}", If_None_Match=said.headers["etag"])
        assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "", "views", "none.js"])
def test_nothing_else_can_be_asked_for(broker: Broker, path: str) -> None:
    assert get(broker, f"/static/{path}").status == 404


@pytest.mark.parametrize("file", OURS, ids=lambda file: str(file.relative_to(STATIC)))
def test_the_page_makes_no_markup_of_text_and_needs_no_network(file: Path) -> None:
    text = file.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|setHTML", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    if file.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", text)


def test_what_is_vendored_has_its_licence() -> None:
    assert "MIT" in (STATIC / "vendor" / "uPlot.LICENSE.txt").read_text()


# --- who may ask ---


@pytest.mark.parametrize("path", ["/v1/live", "/v1/subscribe", "/v1/stats", "/static/app.js"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_foreign_page_embeds_is_refused(broker: Broker, path: str, site: str) -> None:
    said = get(broker, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")
    assert (said.status, said.code) == (403, "bad_origin")


def test_a_link_from_a_foreign_page_leads_to_ours(broker: Broker) -> None:
    assert get(broker, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200


# --- live ---


def live(broker: Broker, query: str = "") -> Events:
    return Events(broker, query, path="/v1/live")


def test_figures_come_again_and_again(broker: Broker) -> None:
    events = live(broker)
    first, second = events.take(2)
    assert (first.kind, second.kind) == ("figures", "figures")
    assert second.data["uptime"] > first.data["uptime"]
    assert first.data.keys() == get(broker, "/v1/stats").json.keys()
    events.close()


def next_sample(events: Events) -> dict[str, Any]:
    while (event := events.next()).kind != "messages":
        pass
    return event.data


def test_a_sample_has_the_messages_that_the_filter_wants(broker: Broker) -> None:
    events = live(broker, "?tail=1&filter=live/%2B")
    assert events.next().kind == "figures"
    post_lines(broker, {"topic": "other", "payload": "no"}, {"topic": "live/a", "payload": "7"})
    sample = next_sample(events)
    assert (sample["seen"], sample["skipped"]) == (1, 0)
    (message,) = sample["messages"]
    assert (message["topic"], message["text"], message["value"], message["size"]) == ("live/a", "7", 7.0, 1)
    assert message["offset"] == get(broker, "/v1/stats").json["log"]["next_offset"] - 1
    events.close()


def test_a_topic_is_meant_as_it_is(broker: Broker) -> None:
    events = live(broker, "?tail=1&topic=odd/%2B")
    assert events.next().kind == "figures"
    post_lines(broker, {"topic": "odd/x", "payload": "no"}, {"topic": "odd/+", "payload": "yes"})
    assert [one["text"] for one in next_sample(events)["messages"]] == ["yes"]
    assert [row["text"] for row in get(broker, "/v1/messages?topic=odd/%2B").rows] == ["yes"]
    assert get(broker, "/v1/messages?topic=a&filter=a").code == "bad_query"
    events.close()


def test_a_flood_is_sampled(broker: Broker) -> None:
    events = live(broker, "?tail=1")
    assert events.next().kind == "figures"
    post_lines(broker, *({"topic": "flood", "payload": f"{n}"} for n in range(15_000)))
    sample = next_sample(events)
    assert len(sample["messages"]) == 25
    assert sample["messages"][-1]["text"] == "14999"
    assert sample["seen"] + sample["skipped"] == 15_000
    assert sample["skipped"] == 11_000
    events.close()


def test_pages_are_bounded_and_make_room_when_they_go(broker: Broker) -> None:
    wait_for(lambda: get(broker, "/v1/stats").json["streams"] == 0, "the end of those before")
    pages = [live(broker) for _ in range(50)]
    assert get(broker, "/v1/live").code == "too_many_streams"
    for page in pages:
        page.close()
    wait_for(lambda: get(broker, "/v1/stats").json["streams"] == 0)
    live(broker).close()


def test_a_pure_relay_has_a_page_too() -> None:
    with Broker("--no-log", kinds=KINDS) as relay:
        events = live(relay, "?tail=1")
        assert events.next().data["log"] is None
        post(relay, "a", b"1")
        (message,) = next_sample(events)["messages"]
        assert (message["text"], message["offset"]) == ("1", None)
        events.close()
        assert get(relay, "/v1/topics").code == "no_log"


# --- topics ---


def test_topics_are_chosen(broker: Broker) -> None:
    post_lines(broker, *({"topic": f"Choose/{n}", "payload": "x" * 50} for n in range(5)))
    end = get(broker, "/v1/stats").json["log"]["next_offset"]

    def names(query: str) -> list[str]:
        return [one["topic"] for one in get(broker, f"/v1/topics?{query}").json]

    assert names("search=cHOOSE/") == [f"Choose/{n}" for n in range(5)]
    assert names("search=choose/3") == ["Choose/3"]
    assert names("search=choose/&limit=2") == ["Choose/0", "Choose/1"]
    assert names(f"since_offset={end - 2}") == ["Choose/3", "Choose/4"]
    assert names("search=nowhere") == []
    (one,) = get(broker, "/v1/topics?search=choose/0&characters=7").json
    assert one["last_text"] == "x" * 7


# --- clients ---


def clients(broker: Broker, query: str = "") -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in get(broker, f"/v1/clients{query}").json["clients"]}


def test_a_client_shows_its_subscriptions_and_that_it_is_behind(broker: Broker) -> None:
    reader = broker.tcp("typed")
    reader.send(b"away1".ljust(11, b"\0") + b"s" + b"kept/a".ljust(50, b"\0") + b"\x01\0")
    wait_for(lambda: clients(broker, "?dialect=typed").get("away1", {}).get("subscription_count"))
    one = clients(broker)["away1"]
    assert one["subscriptions"] == [{"filter": "kept/a", "keep": True}]
    assert (one["here"], one["lag"], one["queue_bytes"], one["dropped"]) == (True, 0, 0, 0)
    assert one["source"].startswith("127.0.0.1:")
    reader.sock.close()
    wait_for(lambda: not clients(broker)["away1"]["here"])
    post_lines(broker, *({"topic": "kept/a", "payload": "1"} for _ in range(3)))
    assert clients(broker)["away1"]["lag"] >= 3


def test_publishers_on_a_connection_are_clients_too(broker: Broker) -> None:
    publisher = broker.tcp("padded")
    name = f"127.0.0.1:{publisher.address[1]}"
    wait_for(lambda: name in clients(broker))
    assert clients(broker, "?dialect=padded")[name]["subscription_count"] == 0
    assert name not in clients(broker, "?dialect=typed")
    publisher.sock.close()
    wait_for(lambda: name not in clients(broker))


def test_clients_are_counted_all_and_shown_in_part(broker: Broker) -> None:
    peers = [broker.udp() for _ in range(5)]
    for peer in peers:
        peer.send(b"scount/#")
    wait_for(lambda: get(broker, "/v1/clients?dialect=semicolon").json["count"] == 5)
    assert len(get(broker, "/v1/clients?dialect=semicolon&limit=2").json["clients"]) == 2
    peers[0].send(b"u")
    wait_for(lambda: get(broker, "/v1/clients?dialect=semicolon").json["count"] == 4)


# --- figures ---


def test_bytes_are_counted_on_both_sides(broker: Broker) -> None:
    peer = broker.udp()
    peer.send(b"sbytes/a")
    before = get(broker, "/v1/stats").json
    peer.send(b"pbytes/a;12345")
    assert peer.receive() == b"bytes/a;12345"
    after = get(broker, "/v1/stats").json
    assert after["bytes_in"] - before["bytes_in"] == 5
    assert after["bytes_out"] - before["bytes_out"] == len(b"bytes/a;12345")


def test_the_log_tells_its_size_and_how_long_the_disk_takes(broker: Broker) -> None:
    before = get(broker, "/v1/stats").json["log"]
    post(broker, "disk", b"1")
    after = get(broker, "/v1/stats").json["log"]
    assert after["bytes"] > 0
    assert after["durable_after"] > 0
    for name in ("append_seconds", "durable_seconds"):
        assert sum(after[name]["counts"]) > sum(before[name]["counts"])
        assert after[name]["sum"] > before[name]["sum"]
        assert len(after[name]["counts"]) == len(after[name]["bounds"]) + 1


# --- pipelines ---


def test_no_pipelines_run(broker: Broker) -> None:
    assert get(broker, "/v1/pipelines").json == {"running": False, "updated": None, "pipelines": []}
    assert get(broker, "/health").json["pipelines"] == "off"


@pytest.mark.parametrize(
    ("content", "pipelines", "health"),
    [
        ({"updated": "2999-01-01T00:00:00Z", "pipelines": [{"name": "a", "state": "running"}]}, ["a"], "ok"),
        ({"updated": "2999-01-01T00:00:00Z", "pipelines": [{"name": "a", "state": "failed"}]}, ["a"], "failed"),
        ({"updated": "2020-01-01T00:00:00Z", "pipelines": [{"name": "a", "state": "running"}]}, ["a"], "off"),
        ({"updated": 7, "pipelines": [1, {"name": "a"}]}, ["a"], "off"),
        ([{"name": "a"}], [], "off"),
        ({"pipelines": 1}, [], "off"),
        ("cut sho", [], "off"),
    ],
)
def test_pipelines_are_as_their_runner_tells(content: Any, pipelines: list[str], health: str, broker: Broker) -> None:
    file = broker.data / "pipelines.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    try:
        assert [one["name"] for one in get(broker, "/v1/pipelines").json["pipelines"]] == pipelines
        assert get(broker, "/health").json["pipelines"] == health
    finally:
        file.unlink()


def test_publishing_is_not_for_foreign_pages(broker: Broker) -> None:
    said = call(broker, "POST", "/v1/publish/a", b"1", Origin="http://evil.example")
    assert (said.status, said.code) == (403, "bad_origin")


def test_mqtt_clients_are_listed_with_what_they_keep() -> None:
    with Broker(kinds=("web", "mqtt")) as broker:
        device = broker.tcp("mqtt")
        device.send(b"\x10\x11\x00\x04MQTT\x04\x00\x00\x3c\x00\x05dev-1")  # not clean: its session stays
        assert device.receive(4)[:2] == b"\x20\x02"
        device.send(b"\x82\x0c\x00\x01\x00\x03a/+\x01\x00\x01#\x00")
        assert device.receive(6) == b"\x90\x04\x00\x01\x01\x00"
        one = clients(broker)["dev-1"]
        assert (one["dialect"], one["here"], one["lag"]) == ("mqtt", True, 0)
        assert one["subscriptions"] == [{"filter": "a/+", "keep": True}, {"filter": "#", "keep": False}]
        assert get(broker, "/v1/clients").json["count"] == 1
        device.sock.close()
        wait_for(lambda: not clients(broker)["dev-1"]["here"])
        post(broker, "a/b", b"1")
        assert clients(broker)["dev-1"]["lag"] >= 1


# --- tables ---


def test_tables_are_listed_and_their_last_rows_shown(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    import pyarrow as pa

    from smbroker.spark.tables import TableWriter

    rows = pa.table(
        {
            "topic": ["a", "b", "a"],
            "offset": [1, 2, 3],
            "value": [0.5, float("nan"), None],
            "text": ["x" * 2_000, "<b>", None],
        }
    )
    writer = TableWriter(tmp_path / "tables" / "numbers", key=("topic", "offset"))
    writer.write(rows.slice(0, 2), "query", 0)
    writer.write(rows, "query", 1)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        (one,) = get(broker, "/v1/tables").json["tables"]
        assert (one["name"], one["rows"], one["version"]) == ("numbers", 3, 1)
        assert [name for name, _ in one["columns"]] == ["topic", "offset", "value", "text"]
        found = get(broker, "/v1/tables/numbers").json["rows"]
        assert [row["offset"] for row in found] == [1, 2, 3]
        assert found[1] == {"topic": "b", "offset": 2, "value": None, "text": "<b>"}
        assert len(found[0]["text"]) == 1_000
        assert [row["offset"] for row in get(broker, "/v1/tables/numbers?limit=1&topic=a").json["rows"]] == [3]
        for name in ("none", "..", "..%2Flog", ".hidden", "a" * 300):
            said = get(broker, f"/v1/tables/{name}")
            assert (said.status, said.body and said.code) in ((404, "no_table"), (404, "not_found")), name


def test_without_tables_nothing_is_started(broker: Broker) -> None:
    assert get(broker, "/v1/tables").json == {"tables": []}
    assert get(broker, "/v1/tables/none").code == "no_table"
    assert wait_for(lambda: children(broker, "smbroker.log.history"), "the reading process")
    assert not children(broker, "smbroker.spark.preview")
