"""Publishing over HTTP: what is answered, when, and what is refused."""

import io
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flow.house import Broker, wait_for
from flow.mqtt import Mqtt
from smbroker.dialects.mqtt import fields as f
from smbroker.log.reader import LogReader
from web.calls import ARROW, KINDS, LINES, Said, answer_to, call, get, post, post_lines, raw


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(kinds=KINDS) as one:
        yield one


def stored(broker: Broker) -> list[dict[str, Any]]:
    return [row for batch in LogReader(broker.data / "log").read(0) for row in batch.to_pylist()]


def row_of(broker: Broker, said: Said) -> dict[str, Any]:
    """The row that the answer tells of, as it is on disk now."""
    offset = said.json["offset"]
    return stored(broker)[offset]


def arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_the_answer_has_the_offset_and_comes_once_the_message_is_on_disk(broker: Broker) -> None:
    for number in range(20):
        said = post(broker, "home/kitchen/temperature", b"%d" % number)
        assert said.status == 200
        row = row_of(broker, said)
        assert (row["topic"], row["payload"]) == ("home/kitchen/temperature", b"%d" % number)
        assert (row["dialect"], row["kind"], row["source"], row["retain"]) == ("http", "bytes", "", False)


@pytest.mark.parametrize(
    ("path", "topic"),
    [
        ("a", "a"),
        ("a/b/c", "a/b/c"),
        ("a//b/", "a//b/"),
        ("/a", "/a"),
        ("a%2Fb", "a/b"),
        ("gr%C3%B6%C3%9Fe", "größe"),
        ("a%0Ab%20c%3F%23%2B", "a\nb c?#+"),
        ("%2B/+/%23", "+/+/#"),
        ("x" * 65_535, "x" * 65_535),
        ("%C3%B6" * 32_767, "ö" * 32_767),
    ],
)
def test_a_topic_is_what_stands_in_the_address(broker: Broker, path: str, topic: str) -> None:
    assert row_of(broker, post(broker, path, b"x"))["topic"] == topic


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", "topic_empty"),
        ("a%00b", "topic_nul"),
        ("a%FF", "topic_not_utf8"),
        ("%ED%A0%80", "topic_not_utf8"),
        ("$SYS/x", "topic_reserved"),
        ("%24stats", "topic_reserved"),
        ("x" * 65_536, "topic_too_long"),
        ("a?retain=2", "bad_query"),
    ],
)
def test_a_bad_topic_is_refused(broker: Broker, path: str, code: str) -> None:
    said = post(broker, path, b"x")
    assert (said.status, said.code) == (400, code)


def test_any_payload_is_taken(broker: Broker) -> None:
    for payload in (b"", b"\0\xff", b"x" * 1_000_000):
        assert row_of(broker, post(broker, "any", payload))["payload"] == payload


def test_retain_is_kept_with_the_message(broker: Broker) -> None:
    assert row_of(broker, post(broker, "r?retain=1", b"x"))["retain"]
    said = post_lines(broker, {"topic": "r", "payload": "1", "retain": True}, {"topic": "r", "payload": "2"})
    rows = stored(broker)[said.json["first_offset"] :]
    assert [row["retain"] for row in rows] == [True, False]


def test_lines_are_published_together(broker: Broker) -> None:
    messages = [{"topic": f"batch/{n}", "payload": f"{n} ö\n"} for n in range(3_000)]
    said = post_lines(broker, *messages, "", {"topic": "batch/b", "payload_base64": "AP8="})
    assert (said.status, said.json["count"]) == (200, 3_001)
    rows = stored(broker)[said.json["first_offset"] :]
    assert [row["topic"] for row in rows] == [*(one["topic"] for one in messages), "batch/b"]
    assert [row["payload"] for row in rows] == [*(one["payload"].encode() for one in messages), b"\0\xff"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", "bad_line"),
        ("[]", "bad_line"),
        ('{"topic": "a", "payload": "b"} {}', "bad_line"),
        ('{"topic": "a"}', "bad_line"),
        ('{"payload": "a"}', "bad_line"),
        ('{"topic": 1, "payload": "a"}', "bad_line"),
        ('{"topic": "a", "payload": 1}', "bad_line"),
        ('{"topic": "a", "payload": "b", "payload_base64": "AA=="}', "bad_line"),
        ('{"topic": "a", "payload_base64": "A"}', "bad_line"),
        ('{"topic": "a", "payload": "\\ud800"}', "bad_line"),
        ('{"topic": "\\ud800", "payload": "b"}', "topic_not_utf8"),
        ('{"topic": "", "payload": "b"}', "topic_empty"),
        ('{"topic": "$SYS", "payload": "b"}', "topic_reserved"),
        ("[" * 100_000, "bad_line"),
    ],
)
def test_one_bad_line_refuses_all(broker: Broker, line: str, code: str) -> None:
    before = len(stored(broker))
    said = post_lines(broker, *[{"topic": "good", "payload": "x"}] * 1_200, line, {"topic": "good", "payload": "x"})
    assert (said.status, said.code) == (400, code)
    assert "1201" in said.json["error"]["text"]
    assert len(stored(broker)) == before


def test_an_empty_body_publishes_nothing(broker: Broker) -> None:
    assert post_lines(broker).json == {"first_offset": None, "count": 0}


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())])
def test_an_arrow_stream_is_published(broker: Broker, kind: pa.DataType) -> None:
    topics = [f"arrow/{n % 7}" for n in range(5_000)]
    table = pa.table({"payload": pa.array([f"{n}" for n in range(5_000)]).cast(kind), "topic": topics, "more": topics})
    said = call(broker, "POST", "/v1/publish", arrow(table), content_type=ARROW)
    assert (said.status, said.json["count"]) == (200, 5_000)
    rows = stored(broker)[said.json["first_offset"] :]
    assert [row["topic"] for row in rows] == topics
    assert [row["payload"] for row in rows] == [b"%d" % n for n in range(5_000)]


def test_a_bad_arrow_stream_is_refused(broker: Broker) -> None:
    good = arrow(pa.table({"topic": ["a"], "payload": [b"x"]}))
    bodies = [
        b"",
        b"no arrow",
        good[:-100],
        arrow(pa.table({"topic": ["a"]})),
        arrow(pa.table({"topic": ["a", None], "payload": [b"x", b"y"]})),
        arrow(pa.table({"topic": ["a", "a"], "payload": pa.DictionaryArray.from_arrays([0, 1], [b"x", None])})),
        arrow(pa.table({"topic": ["a"], "payload": [[1]]})),
        arrow(pa.table({"topic": ["$a"], "payload": [b"x"]})),
        arrow(pa.table({"topic": [b"\xff"], "payload": [b"x"]})),
    ]
    before = len(stored(broker))
    for body in bodies:
        assert call(broker, "POST", "/v1/publish", body, content_type=ARROW).status == 400, body[:20]
    assert len(stored(broker)) == before


def test_what_many_rows_share_is_bounded_as_if_each_had_it(broker: Broker) -> None:
    shared = pa.DictionaryArray.from_arrays([0] * 65, [bytes(1 << 20)])
    said = call(
        broker, "POST", "/v1/publish", arrow(pa.table({"topic": ["a"] * 65, "payload": shared})), content_type=ARROW
    )
    assert (said.status, said.code) == (413, "body_too_long")


def test_other_content_types_are_refused(broker: Broker) -> None:
    for kind in ("text/plain", "application/json", ""):
        assert call(broker, "POST", "/v1/publish", b"{}", content_type=kind).code == "bad_type"


def test_a_length_that_is_too_large_is_refused_before_anything_is_sent(broker: Broker) -> None:
    for path, length in ((b"/v1/publish/a", (16 << 20) + 1), (b"/v1/publish", (64 << 20) + 1)):
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
        with raw(broker, head % (path, LINES.encode(), length)) as sock:
            said = answer_to(sock)
        assert (said.status, said.code) == (413, "body_too_long")


def test_a_body_of_unknown_length_is_cut_off() -> None:
    with Broker(kinds=("web",)) as broker, raw(broker, b"") as sock:
        sock.sendall(b"POST /v1/publish/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        sent = 0
        try:
            while sent < 200:
                sock.sendall(piece)
                sent += 1
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass
        assert sent < 60
        assert get(broker, "/health").status == 200
        assert broker.memory() < 400 << 20


def test_bytes_that_come_slowly_hold_nobody_up(broker: Broker) -> None:
    with raw(broker, b"POST /v1/publish/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n") as sock:
        for byte in b"slowl":
            sock.sendall(bytes([byte]))
            assert post(broker, "quick", b"x").status == 200
        assert row_of(broker, answer_to(sock))["payload"] == b"slowl"


def test_who_leaves_in_the_middle_publishes_nothing(broker: Broker) -> None:
    before = len(stored(broker))
    with raw(broker, b"POST /v1/publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\nhalf"):
        pass
    assert get(broker, "/health").status == 200
    assert len(stored(broker)) == before


def test_every_answered_message_survives_a_kill(tmp_path: Path) -> None:
    with Broker(kinds=("web",), data=tmp_path) as broker:
        offsets = [post(broker, "k", b"%d" % number).json["offset"] for number in range(50)]
        batch = post_lines(broker, *[{"topic": "b", "payload": f"{n}"} for n in range(500)]).json
        broker.kill()
        rows = stored(broker)
        assert [rows[offset]["payload"] for offset in offsets] == [b"%d" % number for number in range(50)]
        assert [row["payload"] for row in rows[batch["first_offset"] :]] == [b"%d" % n for n in range(500)]
        broker.process.returncode = 0  # as was meant
    with Broker(kinds=("web",), data=tmp_path) as broker:
        assert post(broker, "k", b"after").json["offset"] == 550


def test_without_a_log_messages_are_relayed_without_an_offset() -> None:
    with Broker("--no-log", kinds=KINDS) as broker:
        subscriber = broker.udp()
        subscriber.send(b"sa")
        wait_for(lambda: broker.err.has("Current Subscribers: 1"))
        assert post(broker, "a", b"x").json == {"offset": None}
        assert subscriber.receive() == b"a;x"
        assert post_lines(broker, {"topic": "b", "payload": "x"}).json == {"first_offset": None, "count": 1}


def test_publishing_ends_with_the_broker(tmp_path: Path) -> None:
    with Broker(kinds=("web",), data=tmp_path) as broker:
        assert json.loads(post(broker, "a", b"x").body) == {"offset": 0}
        broker.stop(signal.SIGINT)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.ports["web"]), timeout=1)


PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("$correlation-data", "x"),
        ("$expires", "tomorrow"),
        ("k" * 65_536, ""),
        ("k", "ä" * 40_000),
        ("k\0", ""),
        ("k", "\0"),
    ],
)
def test_properties_that_mqtt_cannot_say_are_refused(broker: Broker, key: str, value: str) -> None:
    properties = pa.array([[{"key": key, "value": value}]], PAIRS)
    table = pa.table({"topic": ["p"], "payload": [b""], "properties": properties})
    said = call(broker, "POST", "/v1/publish", arrow(table), content_type=ARROW)
    assert (said.status, said.code) == (400, "bad_property")


def test_properties_at_the_limits_reach_mqtt() -> None:
    with Broker(kinds=(*KINDS, "mqtt")) as broker:
        clients = [Mqtt(broker, version=5) for _ in range(2)]
        for qos, client in enumerate(clients):
            client.subscribe("p", qos=qos)
        pairs = [{"key": "$expires", "value": "9999-12-31T23:59:59Z"}, {"key": "k" * 65_535, "value": "ä" * 32_767}]
        table = pa.table({"topic": ["p"], "payload": [b""], "properties": pa.array([pairs], PAIRS)})
        assert call(broker, "POST", "/v1/publish", arrow(table), content_type=ARROW).status == 200
        for client in clients:
            message = client.get()
            assert message.properties[f.MESSAGE_EXPIRY] == 0xFFFF_FFFF
            assert message.properties[f.USER] == [("k" * 65_535, "ä" * 32_767)]
