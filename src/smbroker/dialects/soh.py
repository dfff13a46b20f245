r"""soh: UDP, named after the byte that begins a publish; subscriptions are acknowledged.

    publish      \x01 topic / subtopic \x02 message      to the broker, and on to clients unchanged
    subscribe    S topic / subtopic
    to client    A topic / subtopic                      the subscription, exactly as received

The topic ends at the first /, the message begins after the first \x02. `#` as the whole topic or
subtopic of a subscription is anything there, in a publish it is refused; elsewhere it is literal.
`Sonly` is `Sonly/#`. What this wire splits in two is one topic, `topic/subtopic`, to the broker.
"""

from dataclasses import dataclass
from typing import TypeAlias

from smbroker.model.commands import Command, Subscribe
from smbroker.model.errors import ProtocolError, Refused, SmbError, Unfit
from smbroker.model.filter import ANY, REST, Filter, exact
from smbroker.model.framing import Framer, prefix_framer
from smbroker.model.message import Kind
from smbroker.model.topic import KnownTopics, Topic, checked_topic, levels_of, published_topic

MAX_DATAGRAM = 4_096  # what comes in
MAX_DELIVERY = 4_095  # what goes out: existing subscribers hold no more
MAX_PART = 512  # topic and subtopic, each

PUBLISH, SUBSCRIBE, ACK = b"\x01SA"
MESSAGE = b"\x02"
WILDCARD = b"#"
BYTES = Kind.BYTES


@dataclass(frozen=True, slots=True)
class Ack:
    topic: bytes  # as subscribed, so perhaps with # or without /


@dataclass(frozen=True, slots=True)
class Message:
    topic: bytes
    message: bytes


Reply: TypeAlias = Ack | Message


def decode(datagram: bytes) -> Command:
    verb = _verb(datagram)
    if verb == PUBLISH:
        topic, message = _split_publish(datagram)
        return _published[topic], message, BYTES, b""
    if verb == SUBSCRIBE:
        asked = datagram[1:]
        subscription = _completed(asked)
        _check_parts(subscription, ProtocolError)
        return Subscribe(_filter(checked_topic(subscription)), reply=b"A" + asked)
    raise ProtocolError("malformed", "neither publish nor subscribe")


def framer(topic: Topic) -> Framer:
    _check_parts(topic, Unfit)
    _check_separator(topic, Unfit)
    return prefix_framer(b"\x01%b\x02" % topic, MAX_DELIVERY)


def encode_publish(topic: Topic, message: bytes) -> bytes:
    _check_parts(topic, Refused)
    _check_separator(topic, Refused)
    datagram = b"\x01%b\x02%b" % (_publishable(topic), message)
    if len(datagram) > MAX_DATAGRAM:
        raise Refused("too_long", f"{len(datagram)} bytes do not fit into a datagram of {MAX_DATAGRAM}")
    return datagram


def encode_subscribe(topic: bytes) -> bytes:
    _check_parts(_completed(topic), Refused)
    return b"S" + checked_topic(topic)


def decode_reply(datagram: bytes) -> Reply:
    verb = _verb(datagram)
    if verb == ACK:
        _check_parts(_completed(datagram[1:]), ProtocolError)
        return Ack(datagram[1:])
    if verb == PUBLISH:
        topic, message = _split_publish(datagram)
        _check_parts(topic, ProtocolError)
        return Message(topic, message)
    raise ProtocolError("malformed", "neither acknowledgement nor message")


def _verb(datagram: bytes) -> int:
    if not datagram:
        raise ProtocolError("empty", "empty datagram")
    if len(datagram) > MAX_DATAGRAM:
        raise ProtocolError("too_long", f"{len(datagram)} bytes, a datagram has at most {MAX_DATAGRAM}")
    return datagram[0]


def _split_publish(datagram: bytes) -> tuple[bytes, bytes]:
    topic, separator, message = datagram[1:].partition(MESSAGE)
    if not separator:
        raise ProtocolError("malformed", "a publish without \\x02")
    return topic, message


def _check_parts(whole: bytes, error: type[SmbError]) -> None:
    topic, slash, subtopic = whole.partition(b"/")
    if not slash:
        raise error("topic_no_subtopic", "the topic has no / and so no subtopic")
    if not topic:
        raise error("topic_empty", "the topic is empty")
    if not subtopic:
        raise error("subtopic_empty", "the subtopic is empty")
    if len(topic) > MAX_PART:
        raise error("topic_too_long", f"topic of {len(topic)} bytes, at most {MAX_PART}")
    if len(subtopic) > MAX_PART:
        raise error("subtopic_too_long", f"subtopic of {len(subtopic)} bytes, at most {MAX_PART}")


def _check_separator(topic: Topic, error: type[SmbError]) -> None:
    if MESSAGE in topic:
        raise error("topic_separator", "the topic holds \\x02")


def _publishable(raw: bytes) -> Topic:
    if WILDCARD in raw.split(b"/", 1):
        raise Refused("topic_wildcard", "a published topic or subtopic must not be #")
    return checked_topic(raw)


def _received(raw: bytes) -> Topic:
    _check_parts(raw, ProtocolError)
    return published_topic(_publishable(raw))


_published = KnownTopics(_received)


def _completed(subscription: bytes) -> bytes:
    return subscription if b"/" in subscription else subscription + b"/#"


def _filter(subscription: Topic) -> Filter:
    topic, _, subtopic = subscription.partition(b"/")
    if topic == subtopic == WILDCARD:
        return (REST,)  # also topics without /, so that they are counted as unfit and do not just vanish
    if subtopic == WILDCARD:
        return (topic, ANY, REST)
    if topic == WILDCARD:
        return (ANY, *levels_of(subtopic))
    return exact(subscription)
