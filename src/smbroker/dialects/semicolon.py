"""semicolon: UDP, no acknowledgements.

    publish      p topic ; message        split at the first ;
    subscribe    s topic
    unsubscribe  u …                      all subscriptions of that address, whatever follows
    to client    topic ; message

`#` as a level of a subscription: in the middle exactly one level, at the end one or more, alone
everything. In a published topic it is refused. A datagram has at most 508 bytes.
"""

from dataclasses import dataclass

from smbroker.model.commands import Command, Subscribe, Unsubscribe
from smbroker.model.errors import ProtocolError, Refused, Unfit
from smbroker.model.filter import ANY, REST, Filter, FilterLevel
from smbroker.model.framing import Framer, prefix_framer
from smbroker.model.message import Kind
from smbroker.model.topic import Topic, checked_topic, levels_of

MAX_DATAGRAM = 508  # what every IPv4 path carries in one piece
MAX_TOPIC = 128
MAX_MESSAGE = 500

PUBLISH, SUBSCRIBE, UNSUBSCRIBE = b"psu"
WILDCARD = b"#"


@dataclass(frozen=True, slots=True)
class Codec:
    """The rules that a broker can set; they bind what comes in."""

    max_topic: int = MAX_TOPIC
    max_message: int = MAX_MESSAGE
    prefix_match: bool = False  # a subscription without wildcard also matches deeper topics

    def decode(self, datagram: bytes) -> Command:
        if not datagram:
            raise ProtocolError("empty", "empty datagram")
        if len(datagram) > MAX_DATAGRAM:
            raise ProtocolError("too_long", f"{len(datagram)} bytes, a datagram has at most {MAX_DATAGRAM}")
        verb = datagram[0]
        if verb == PUBLISH:
            topic, separator, message = datagram[1:].partition(b";")
            if not separator:
                raise ProtocolError("malformed", "a publish without ;")
            if len(message) > self.max_message:
                raise Refused("message_too_long", f"message of {len(message)} bytes, at most {self.max_message}")
            if WILDCARD in topic:
                raise Refused("topic_wildcard", "a published topic must not hold #")
            return self._topic(topic), message, Kind.BYTES, b""
        if verb == SUBSCRIBE:
            return Subscribe(self.filter(self._topic(datagram[1:])))
        if verb == UNSUBSCRIBE:
            return Unsubscribe(None)
        raise ProtocolError("malformed", "neither publish, subscribe nor unsubscribe")

    def _topic(self, raw: bytes) -> Topic:
        if len(raw) > self.max_topic:
            raise Refused("topic_too_long", f"topic of {len(raw)} bytes, at most {self.max_topic}")
        return checked_topic(raw)

    def filter(self, topic: Topic) -> Filter:
        levels = levels_of(topic)
        if levels == [WILDCARD]:
            return (REST,)
        if WILDCARD not in levels:
            return (*levels, REST) if self.prefix_match else tuple(levels)
        pattern: list[FilterLevel] = [ANY if level == WILDCARD else level for level in levels]
        return (*pattern, REST) if levels[-1] == WILDCARD else tuple(pattern)


def framer(topic: Topic) -> Framer:
    if b";" in topic:
        raise Unfit("topic_separator", "the topic holds ;")
    if len(topic) + 1 > MAX_DATAGRAM:
        raise Unfit("too_long", "the topic fills the datagram")
    return prefix_framer(topic + b";", MAX_DATAGRAM)


def encode_publish(topic: Topic, message: bytes) -> bytes:
    return _checked_length(b"p%b;%b" % (topic, message))


def encode_subscribe(topic: bytes) -> bytes:
    return _checked_length(b"s" + topic)


def encode_unsubscribe() -> bytes:
    return b"u"


def _checked_length(datagram: bytes) -> bytes:
    if len(datagram) > MAX_DATAGRAM:
        raise Refused("too_long", f"{len(datagram)} bytes do not fit into a datagram of {MAX_DATAGRAM}")
    return datagram
