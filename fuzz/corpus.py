"""Writes valid input of every target to DIRECTORY/TARGET, to begin with: `python fuzz/corpus.py DIRECTORY`."""

import hashlib
import struct
import sys
from pathlib import Path

from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import (
    Ack,
    Connect,
    Disconnect,
    Ping,
    Publish,
    Subscribe,
    Topics,
    Unsubscribe,
    Will,
)

TOPICS = (b"a", b"a/b", b"a/b/c", b"#", b"a/#", b"#/b", b"+", b"$x/y", b"", b"/", b"a//b", "größe/€".encode(), b" a ")
TEXTS = (b"", b"x", b"hello", "für €😀".encode(), b"\0", b"\xff\xfe", b"a;b|c\x02d", b"1" * 300)


def _fields(*fields: bytes) -> bytes:
    return b"".join(field.ljust(64) for field in fields)


def _mqtt(version: int) -> list[bytes]:
    will = Will(b"will", b"gone", 1, True)
    properties = {f.USER: [("key", "value")]} if version == 5 else {}
    packets = [
        Publish(b"a/b", b"hello", properties=properties),
        Publish(b"a/b", b"hello", 1, packet_id=1),
        Publish(b"a", b"", 2, True, packet_id=2),
        Ack(f.PUBACK, 1),
        Ack(f.PUBREL, 2),
        Subscribe(3, [Topics(b"a/#", 1), Topics(b"+/b", 2)], properties),
        Unsubscribe(4, [b"a/#"]),
        Ping(f.PINGREQ),
        Disconnect(),
    ]
    first = bytes((version - 2 if version > 3 else 1,))
    single = [first + packet.encode(version) for packet in packets]
    together = first + b"".join(packet.encode(version) for packet in packets) * 2
    return [*single, together, b"\0" + Connect(version, "client", True, 60, will).encode()]


def _http() -> list[bytes]:
    def request(line: str, body: bytes = b"", *headers: str) -> bytes:
        lines = (f"{line} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers)
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    line = b'{"topic": "a/b", "payload": "hello"}\n{"topic": "a", "payload_base64": "aGVsbG8=", "retain": true}\n'
    return [
        request("POST /v1/publish/a%2Fb/c?retain=1", b"hello"),
        request("POST /v1/publish", line, "Content-Type: application/x-ndjson"),
        request("GET /v1/messages?filter=a/%23&from=3&since=2026-11-15T10:00:00Z&limit=10&before=9"),
        request("GET /v1/subscribe?filter=a/b&from=earliest", b"", "Last-Event-ID: 7"),
        request("GET /v1/topics?search=a&order=count&characters=10"),
        request("GET /mqtt", b"", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
        *(request(f"GET {path}") for path in ("/", "/health", "/v1/stats", "/v1/tables/x", "/static/../x")),
        request("POST /v1/stages", b"x"),
        request("GET /v1/stats", b"", "Authorization: Basic YW5uOnNlY3JldA==", "Cookie: smb=session"),
        request(
            "POST /v1/login",
            b'{"user": "ann", "password": "secret"}',
            "Content-Type: application/json",
            "Origin: http://127.0.0.1",
        ),
        request("GET /", b"", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site"),
    ]


def valid() -> dict[str, list[bytes]]:
    each = [(topic, text) for topic in TOPICS for text in TEXTS]
    numbers = [(0, struct.pack("!BI", 1, 10)), (1, b"\0\xe6"), (2, struct.pack("!BIB", 0, 12_344_321, 4)), (3, b"text")]
    typed_datagrams = [
        b"\1" + topic.ljust(50, b"\0") + bytes((kind,)) + value for topic in TOPICS for kind, value in numbers
    ]
    typed_streams = [
        b"\4" + b"C1".ljust(11, b"\0") + b"s" + topic.ljust(50, b"\0") + b"\1\0" + b"u" + topic.ljust(50, b"\0") + b"\0"
        for topic in TOPICS
    ]
    padded = [b"\x40" + _fields(b"Publish", topic, b"%d" % len(text)) + text for topic, text in each]
    padded += [b"\x10" + _fields(b"Subscribe", topic) + _fields(b"Ping", b"Disconnect") for topic in TOPICS]
    masked = [
        b"\x82\x85\1\2\3\4hello",
        b"\x02\x80\0\0\0\0\x80\xfe\0\x7e\0\0\0\0" + b"m" * 126,
        b"\x89\x80\0\0\0\0",
        b"\x88\x80\0\0\0\0",
    ]
    return {
        "soh": [b"S" + topic for topic in TOPICS] + [b"\x01%b\x02%b" % pair for pair in each],
        "pipe": [b"S|" + topic for topic in TOPICS] + [b"P|%b|%b" % pair for pair in each],
        "semicolon": [b"s" + topic for topic in TOPICS] + [b"p%b;%b" % pair for pair in each] + [b"u"],
        "typed": typed_datagrams + typed_streams,
        "padded": padded,
        "mqtt": [each for version in (3, 4, 5) for each in _mqtt(version)],
        "websocket": [b"\6" + frame for frame in masked],
        "http": _http(),
    }


def main() -> None:
    for target, inputs in valid().items():
        directory = Path(sys.argv[1]) / target
        directory.mkdir(parents=True, exist_ok=True)
        for data in inputs:
            (directory / hashlib.sha1(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main()
