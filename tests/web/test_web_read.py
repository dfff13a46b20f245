"""Reading over HTTP: history, streams, topics, figures, health."""

import resource
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from flow.house import Broker, wait_for
from flow.test_pairs import Subscriber
from flow.wires import TypedSubscriber, datagram, delivery, frame, padded_publish, padded_subscriber
from web.calls import KINDS, Events, Said, answer_to, call, get, post, post_lines, raw


@pytest.fixture(scope="module")
def history() -> Iterator[Broker]:
    """3,000 messages over 30 topics, and one that is no text; nothing is published later."""
    with Broker(kinds=KINDS) as broker:
        messages = [{"topic": f"t/{n % 30}", "payload": f"{n}"} for n in range(3_000)]
        post_lines(broker, *messages, {"topic": "raw", "payload_base64": "/w=="})
        yield broker


def messages(broker: Broker, query: str = "") -> Said:
    return get(broker, f"/v1/messages{query}")


def offsets(broker: Broker, query: str) -> list[int]:
    said = messages(broker, query)
    assert said.status == 200, said.body
    return [row["offset"] for row in said.rows]


def test_a_row_says_all_there_is(history: Broker) -> None:
    (row,) = messages(history, "?from=42&limit=1").rows
    assert row.pop("ts").endswith("Z")
    assert row == {
        "offset": 42, "topic": "t/12", "kind": "bytes", "text": "42", "value": 42.0, "dialect": "http", "source": "",
        "client": None,
    }  # fmt: skip
    (row,) = messages(history, "?filter=raw").rows
    assert (row["payload_base64"], "text" in row) == ("/w==", False)


def test_each_message_has_its_own_time_though_they_are_kept_together(broker: Broker) -> None:
    topic, peer = "its/own/time", broker.udp()
    peer.send(b"s" + topic.encode())
    between = []
    for number in range(20):
        before = datetime.now(UTC)
        assert peer.ask(f"p{topic};{number}".encode()) == f"{topic};{number}".encode()
        between.append((before, datetime.now(UTC)))
    post(broker, "kept", b"so all before it is")
    rows = messages(broker, f"?filter={topic}").rows
    assert [row["text"] for row in rows] == [str(number) for number in range(20)]
    times = [datetime.fromisoformat(row["ts"]) for row in rows]
    assert all(before <= at <= after for at, (before, after) in zip(times, between, strict=True))
    last = Events(broker, f"?filter={topic}&from={rows[7]['offset']}")
    assert [event.data["ts"] for event in last.take(13)] == [row["ts"] for row in rows[7:]]
    last.close()


def test_who_asks_need_not_wait_for_what_gathers(tmp_path: Path) -> None:
    settings = tmp_path / "smb.toml"
    settings.write_text("[log]\nlinger = 3600\n")
    with Broker("--config", str(settings), kinds=KINDS) as broker:
        peer = broker.udp()
        peer.send(b"sgathers")

        def publish(text: str) -> None:
            assert peer.ask(f"pgathers;{text}".encode()) == f"gathers;{text}".encode()

        publish("a")
        assert [row["text"] for row in messages(broker).rows] == ["a"]
        publish("b")
        assert [(one["topic"], one["count"]) for one in get(broker, "/v1/topics").json] == [("gathers", 2)]
        publish("c")
        events = Events(broker, "?from=0")
        assert [event.data["text"] for event in events.take(3)] == ["a", "b", "c"]
        events.close()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", range(1_000)),
        ("?limit=3000", range(3_000)),
        ("?limit=100000", range(3_001)),
        ("?from=2995", range(2_995, 3_001)),
        ("?from=2000&limit=2", [2_000, 2_001]),
        ("?from=3001", []),
        ("?from=999999", []),
        ("?filter=t/7&limit=3", [7, 37, 67]),
        ("?filter=t/%2B&from=2990", range(2_990, 3_000)),
        ("?filter=none", []),
        ("?before=5", range(5)),
        ("?before=2000&limit=3", [1_997, 1_998, 1_999]),
        ("?before=9223372036854775807&limit=2", [2_999, 3_000]),
        ("?before=latest&limit=1", [3_000]),
        ("?before=3000&filter=t/7&limit=2", [2_947, 2_977]),
        ("?before=100&from=98", [98, 99]),
        ("?before=0", []),
        ("?from=earliest&limit=1", [0]),
        ("?since=2000-01-01T00:00:00Z&limit=1", [0]),
        ("?since=2100-01-01", []),
        ("?since=2000-01-01&from=10&limit=1", [10]),
    ],
)
def test_what_is_asked_for_is_what_comes(history: Broker, query: str, expected: Any) -> None:
    assert offsets(history, query) == list(expected)


def test_since_begins_with_the_first_message_of_that_time(history: Broker) -> None:
    ts = messages(history, "?from=1500&limit=1").rows[0]["ts"]
    first = offsets(history, f"?since={quote(ts)}&limit=1")[0]
    assert first <= 1_500
    assert messages(history, f"?from={first}&limit=1").rows[0]["ts"] == ts


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("?filter=a%23", "bad_filter"),
        ("?filter=%23/a", "bad_filter"),
        ("?filter=", "topic_empty"),
        ("?from=-1", "bad_query"),
        ("?from=x", "bad_query"),
        ("?from=99999999999999999999", "bad_query"),
        ("?from=%C2%B2", "bad_query"),
        ("?before=x", "bad_query"),
        ("?limit=0", "bad_query"),
        ("?limit=100001", "bad_query"),
        ("?since=yesterday", "bad_query"),
    ],
)
def test_a_bad_question_is_refused(history: Broker, query: str, code: str) -> None:
    said = messages(history, query)
    assert (said.status, said.code) == (400, code)


def test_topics_have_their_count_and_last_message(history: Broker) -> None:
    topics = {one["topic"]: one for one in get(history, "/v1/topics").json}
    assert len(topics) == 31
    assert list(topics) == sorted(topics)
    seven = topics["t/7"]
    assert (seven["count"], seven["last_offset"], seven["last_text"]) == (100, 2_977, "2977")
    assert seven["last_ts"] == messages(history, "?from=2977&limit=1").rows[0]["ts"]
    assert topics["raw"]["last_text"] is None


def test_topics_are_there_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with Broker(kinds=("web",), data=tmp_path) as broker:
        assert get(broker, "/v1/topics").json == []
        for number in range(3):
            post(broker, "a", b"%d" % number)
            (one,) = get(broker, "/v1/topics").json
            assert (one["count"], one["last_text"]) == (number + 1, f"{number}")
    with Broker(kinds=("web",), data=tmp_path) as broker:
        (one,) = get(broker, "/v1/topics").json
        assert (one["count"], one["last_offset"], one["last_text"]) == (3, 2, "2")


def test_the_list_of_topics_is_bounded(tmp_path: Path) -> None:
    settings = tmp_path / "smb.toml"
    settings.write_text("[web]\nmax_topics = 100\n")
    with Broker("--config", str(settings), kinds=("web",)) as broker:
        post_lines(broker, *[{"topic": f"{n}", "payload": "x" * 2_000} for n in range(5_000)])
        topics = get(broker, "/v1/topics").json
        assert 50 <= len(topics) <= 100
        assert "4999" in {one["topic"] for one in topics}
        assert len(topics[0]["last_text"]) == 1_000


def test_figures(history: Broker) -> None:
    stats = get(history, "/v1/stats").json
    assert stats["received"]["http"] == 3_001
    assert stats["log"]["next_offset"] == 3_001
    assert stats["log"]["error"] is None


def test_health(history: Broker) -> None:
    said = get(history, "/health")
    assert said.status == 200
    assert said.json == {"status": "ok", "log": "ok", "pipelines": "off"}


# --- streams ---


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Where these tests publish, one after the other."""
    with Broker(kinds=KINDS) as broker:
        yield broker


def test_a_stream_has_history_and_then_what_is_new(broker: Broker) -> None:
    lines = post_lines(broker, *[{"topic": f"t/{n % 2}", "payload": f"{n}"} for n in range(3_000)])
    first = lines.json["first_offset"]
    events = Events(broker, f"?filter=t/1&from={first + 101}")
    assert [event.id for event in events.take(1_450)] == list(range(first + 101, first + 3_000, 2))
    post(broker, "t/0", b"not this one")
    last = post(broker, "t/1", b"live").json["offset"]
    event = events.next()
    assert (event.id, event.data["text"], event.data["offset"]) == (last, "live", last)
    (row,) = messages(broker, f"?from={last}").rows
    assert event.data == row
    events.close()


def test_without_from_only_what_is_new_comes(broker: Broker) -> None:
    post(broker, "a", b"old")
    events = Events(broker)
    post(broker, "a", b"new")
    assert events.next().data["text"] == "new"
    events.close()


def test_going_on_after_the_last_id_loses_nothing_and_repeats_nothing(broker: Broker) -> None:
    first = get(broker, "/v1/stats").json["log"]["next_offset"]
    seen: list[int | None] = []
    events = Events(broker, "?from=0&filter=n")
    for number in range(300):
        post_lines(broker, *[{"topic": "n", "payload": f"{number}"}] * 10)
        if number % 60 == 59:
            seen += [event.id for event in events.take(7 + number)]
            events.close()
            events = Events(broker, "?from=0&filter=n", last=seen[-1])
    seen += [event.id for event in events.take(3_000 - len(seen))]
    assert seen == list(range(first, first + 3_000))
    events.close()


def test_a_reader_that_stops_holds_nobody_up_and_goes_on_where_it_was() -> None:
    with Broker(kinds=KINDS) as broker:
        events = Events(broker, "?from=0")
        before = broker.memory()
        for number in range(60):
            post_lines(broker, *[{"topic": "t", "payload": f"{number} " + "x" * 1_000}] * 1_000)
        assert broker.memory() - before < 100 << 20
        assert [event.id for event in events.take(60_000)] == list(range(60_000))
        events.close()


def test_streams_end_with_the_broker() -> None:
    with Broker(kinds=KINDS) as broker:
        streams = [Events(broker) for _ in range(20)]
        assert broker.stop() == 0
        assert all(stream.ended() for stream in streams)


def test_streams_are_bounded(tmp_path: Path) -> None:
    settings = tmp_path / "smb.toml"
    settings.write_text("[web]\nmax_streams = 3\n")
    with Broker("--config", str(settings), kinds=("web",)) as broker:
        streams = [Events(broker) for _ in range(3)]
        said = get(broker, "/v1/subscribe")
        assert (said.status, said.code) == (503, "too_many_streams")
        streams.pop().close()
        wait_for(lambda: get(broker, "/v1/stats").json["streams"] == 2)
        Events(broker).close()
        for stream in streams:
            stream.close()


def test_what_was_published_before_is_not_new_to_a_stream(tmp_path: Path) -> None:
    config = tmp_path / "smb.toml"
    config.write_text("[log]\nlinger = 3600\n")
    with Broker("--config", str(config), kinds=KINDS) as broker:
        subscriber = Subscriber(broker, "semicolon", b"t")
        broker.udp().send(b"pt;before")
        assert subscriber.take(0) == b"t;before"
        events = Events(broker, "?filter=t")
        post(broker, "t", b"after")
        assert events.next().data["text"] == "after"
        events.close()


def test_a_message_of_http_reaches_subscribers_of_all_dialects(broker: Broker) -> None:
    events = Events(broker)
    semicolon, padded, typed = (
        broker.udp(),
        padded_subscriber(broker, b"http/b"),
        TypedSubscriber(broker, b"d", b"http/b"),
    )
    semicolon.send(b"shttp/b")
    wait_for(lambda: broker.err.has("Current Subscribers: 1"))
    typed.settle()
    offset = post(broker, "http/b", b"from http").json["offset"]
    assert semicolon.receive() == b"http/b;from http"
    expected = delivery(b"http/b", b"from http")
    assert padded.receive(len(expected)) == expected
    assert typed.take() == frame(b"http/b", b"from http", ("0.0.0.0", 0))
    while (event := events.next()).id != offset:  # marks
        pass
    assert (event.data["dialect"], event.data["text"]) == ("http", "from http")
    events.close()


def test_a_stream_gets_messages_of_all_dialects(broker: Broker) -> None:
    events = Events(broker, "?filter=a/b")
    broker.udp().send(b"pa/b;semicolon")
    assert events.next().data["text"] == "semicolon"
    broker.udp().send(b"P|a/b|pipe")
    assert events.next().data["text"] == "pipe"
    broker.udp().send(b"\x01a/b\x02soh")
    assert events.next().data["text"] == "soh"
    padded_publish(broker.tcp("padded"), b"a/b", b"padded")
    assert events.next().data["text"] == "padded"
    publisher = broker.udp("typed")
    publisher.send(datagram(b"a/b", b"\x01" + (42).to_bytes(4, "big"), kind=0))
    event = events.next()
    assert (event.data["kind"], event.data["text"], event.data["value"]) == ("int", "-42", -42.0)
    assert event.data["source"] == ":".join(map(str, publisher.address))
    events.close()


def test_without_a_log_there_is_no_history_but_a_live_stream() -> None:
    with Broker("--no-log", kinds=KINDS) as broker:
        for path in ("/v1/messages", "/v1/subscribe?from=0", "/v1/topics"):
            said = get(broker, path)
            assert (said.status, said.code) == (503, "no_log")
        assert get(broker, "/health").json["log"] == "off"
        events = Events(broker)
        broker.udp().send(b"pa;x")
        event = events.next()
        assert (event.id, event.data["offset"], event.data["text"]) == (None, None, "x")
        events.close()


# --- odd requests ---


def test_what_is_not_there_is_404_and_a_wrong_method_405(history: Broker) -> None:
    assert (get(history, "/nothing").status, get(history, "/nothing").code) == (404, "not_found")
    assert call(history, "DELETE", "/health").status == 405
    assert get(history, "/v1/publish/a").status == 405
    assert call(history, "HEAD", "/v1/subscribe").status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/health", {"GET", "HEAD"}),
        ("POST", "/", {"GET", "HEAD"}),
        ("GET", "/v1/publish/a", {"POST"}),
        ("PUT", "/v1/publish", {"POST"}),
        ("GET", "/v1/login", {"POST"}),
    ],
)
def test_405_says_which_methods_there_are(history: Broker, method: str, path: str, allowed: set[str]) -> None:
    said = call(history, method, path)
    assert (said.status, said.code) == (405, "method_not_allowed")
    assert set(said.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8090", "127.9.9.9", "[::1]:5", "a.localhost"])
def test_our_own_names_are_taken(history: Broker, host: str) -> None:
    assert get(history, "/health", host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.0.2.1", "", "localhost.evil", "@"])
def test_other_names_are_refused(history: Broker, host: str) -> None:
    assert (get(history, "/health", host=host).status, get(history, "/health", host=host).code) == (400, "bad_host")


def test_a_name_of_the_settings_is_taken(tmp_path: Path) -> None:
    settings = tmp_path / "smb.toml"
    settings.write_text('[web]\nhosts = ["Broker.example"]\n')
    with Broker("--config", str(settings), kinds=("web",)) as broker:
        assert get(broker, "/health", host="broker.example:8090").status == 200
        assert get(broker, "/health", host="other.example").status == 400


def test_foreign_pages_are_refused(history: Broker) -> None:
    assert get(history, "/health", host="localhost:1", origin="http://localhost:1").status == 200
    for origin in ("http://evil.example", "null", "http://localhost:2"):
        said = post(history, "a", b"x", host="localhost:1", origin=origin)
        assert (said.status, said.code) == (403, "bad_origin")


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n",
        b"POST /v1/publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET /" + b"x" * (300 << 10) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 100_000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ],
)
def test_odd_requests_are_answered_and_the_broker_lives(history: Broker, data: bytes) -> None:
    try:
        with raw(history, data) as sock:
            assert answer_to(sock).status in (200, 400, 404)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it did not want to read all of that
    assert get(history, "/health").status == 200


def test_requests_in_a_row_on_one_connection_are_answered_in_order(history: Broker) -> None:
    with raw(history, b"GET /v1/messages?from=7&limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5) as sock:
        said = b""
        while said.count(b'"offset": 7') < 5:
            said += sock.recv(65_536)
        assert said.count(b"HTTP/1.1 200") == 5


def test_the_log_that_cannot_take_it_is_503(tmp_path: Path) -> None:
    """The disk is full for a process that may write no more bytes."""
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        assert post(broker, "a", b"x").status == 200
        size = sum(file.stat().st_size for file in (tmp_path / "log").iterdir())
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
        said = wait_for(lambda: (one := post(broker, "a", b"y" * 10_000)).status != 200 and one)
        assert (said.status, said.code) == (503, "log_unavailable")
        health = get(broker, "/health")
        assert health.status == 503
        assert health.json["status"] == "log"
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        wait_for(lambda: post(broker, "a", b"z").status == 200)
        assert get(broker, "/health").status == 200
        payloads = [row["text"] for row in messages(broker).rows]
        assert payloads[0] == "x"
        assert payloads[-1] == "z"
