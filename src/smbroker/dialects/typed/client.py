"""The clients' side of typed: publishers (UDP) and subscribers (TCP).

    publish      topic 50 · type 1 · content              encode_publish
    identity     id 11                                    encode_identity
    subscribe    s · topic 50 · sf · NUL                  encode_subscribe
    unsubscribe  u · topic 50 · NUL                       encode_unsubscribe
    message      1,570 bytes, pictured in `frames`        decode_message

What these accept, the broker accepts.
"""

from dataclasses import dataclass

from smbroker.dialects.typed.content import NUL, decode_content, encode_content
from smbroker.dialects.typed.datagram import CONTENT, TOPIC
from smbroker.dialects.typed.decoder import IDENTITY
from smbroker.dialects.typed.frames import END, FRAME, HOST, SOURCE, topic_field
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.message import Kind
from smbroker.model.topic import Topic, checked_topic


@dataclass(frozen=True, slots=True)
class Received:
    host: str
    port: int
    topic: Topic
    kind: Kind
    text: str | bytes  # bytes only for a STRING that is not UTF-8


def encode_publish(topic: Topic, kind: Kind, text: str) -> bytes:
    content = encode_content(kind, text.encode("utf-8", "surrogateescape"))  # an argument's bytes as they were given
    return _topic(topic) + bytes([min(kind, Kind.STRING)]) + content


def encode_identity(client: str) -> bytes:
    try:
        raw = client.encode()
    except UnicodeEncodeError as error:
        raise Refused("id_not_utf8", "the id is not UTF-8") from error
    if not raw:
        raise Refused("id_empty", "the id is empty")
    if NUL in raw:
        raise Refused("id_nul", "the id holds a NUL")
    if len(raw) >= IDENTITY:
        raise Refused("id_too_long", f"the id has {len(raw)} bytes, at most {IDENTITY - 1}")
    return raw.ljust(IDENTITY, NUL)


def encode_subscribe(topic: Topic, sf: bool) -> bytes:
    return b"s" + _topic(topic) + bytes([sf]) + NUL


def encode_unsubscribe(topic: Topic) -> bytes:
    return b"u" + _topic(topic) + NUL


def _topic(topic: Topic) -> bytes:
    return topic_field(checked_topic(topic), Refused)


def decode_message(frame: bytes) -> Received:
    if len(frame) != FRAME or not frame.endswith(END):
        raise ProtocolError("malformed", f"a message has {FRAME} bytes, the last of them \\r")
    port = SOURCE + HOST
    kind, payload = decode_content(frame[TOPIC], frame[CONTENT:SOURCE])
    try:
        host = frame[SOURCE:port].partition(NUL)[0].decode("ascii")
        topic = checked_topic(frame[:TOPIC].partition(NUL)[0])
    except UnicodeDecodeError as error:
        raise ProtocolError("malformed", "the source is not an address") from error
    except Refused as error:
        raise ProtocolError(error.code, error.text) from error
    return Received(host, int.from_bytes(frame[port : port + 2], "big"), topic, kind, _text(payload))


def _text(payload: bytes) -> str | bytes:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload
