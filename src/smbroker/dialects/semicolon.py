"""semicolon: UDP, no acknowledgements.

    publish      p topic ; message        split at the first ;
    subscribe    s topic
    unsubscribe  u …                      all subscriptions of that address, whatever follows
    to client    topic ; message

`#` as a level of a subscription: in the middle exactly one level, at the end one or more, alone
everything. In a published topic it is refused. A datagram has at most 508 bytes.
"""

from smbroker.model.commands import Command, Subscribe, Unsubscribe
from smbroker.model.errors import ProtocolError, Refused, Unfit
from smbroker.model.filter import ANY, REST, Filter, FilterLevel
from smbroker.model.framing import Framer, prefix_framer
from smbroker.model.message import Kind
from smbroker.model.topic import KnownTopics, Topic, checked_topic, levels_of, published_topic

MAX_DATAGRAM = 508  # what every IPv4 path carries in one piece
MAX_TOPIC = 128
MAX_MESSAGE = 500

PUBLISH, SUBSCRIBE, UNSUBSCRIBE = b"p", b"s", b"u"
BYTES = Kind.BYTES
WILDCARD = b"#"


class Codec:
    """The rules that a broker can set; they bind what comes in."""

    def __init__(
        self, max_topic: int = MAX_TOPIC, max_message: int = MAX_MESSAGE, *, prefix_match: bool = False
    ) -> None:
        self._max_topic = max_topic
        self._max_message = max_message
        self._prefix_match = prefix_match  # a subscription without wildcard also matches deeper topics
        self._published = KnownTopics(self._published_topic)  # by `p` and topic

    def decode(self, datagram: bytes) -> Command:
        if len(datagram) > MAX_DATAGRAM:
            raise ProtocolError("too_long", f"{len(datagram)} bytes, a datagram has at most {MAX_DATAGRAM}")
        verb = datagram[:1]
        if verb == PUBLISH:
            head, separator, message = datagram.partition(b";")
            if not separator:
                raise ProtocolError("malformed", "a publish without ;")
            if len(message) > self._max_message:
                raise Refused("message_too_long", f"message of {len(message)} bytes, at most {self._max_message}")
            return self._published[head], message, BYTES, b""
        if verb == SUBSCRIBE:
            return Subscribe(self.filter(self._topic(datagram[1:])))
        if verb == UNSUBSCRIBE:
            return Unsubscribe(None)
        raise ProtocolError("malformed", "neither publish, subscribe nor unsubscribe")

    def _published_topic(self, head: bytes) -> Topic:
        if WILDCARD in head:
            raise Refused("topic_wildcard", "a published topic must not hold #")
        return published_topic(self._topic(head[1:]))

    def _topic(self, raw: bytes) -> Topic:
        if len(raw) > self._max_topic:
            raise Refused("topic_too_long", f"topic of {len(raw)} bytes, at most {self._max_topic}")
        return checked_topic(raw)

    def filter(self, topic: Topic) -> Filter:
        levels = levels_of(topic)
        if levels == [WILDCARD]:
            return (REST,)
        if WILDCARD not in levels:
            return (*levels, REST) if self._prefix_match else tuple(levels)
        pattern: list[FilterLevel] = [ANY if level == WILDCARD else level for level in levels]
        return (*pattern, REST) if levels[-1] == WILDCARD else tuple(pattern)


def framer(topic: Topic) -> Framer:
    if b";" in topic:
        raise Unfit("topic_separator", "the topic holds ;")
    if len(topic) + 1 > MAX_DATAGRAM:
        raise Unfit("too_long", "the topic fills the datagram")
    return prefix_framer(topic + b";", MAX_DATAGRAM)


def encode_publish(topic: Topic, message: bytes) -> bytes:
    if b";" in topic:
        raise Refused("topic_separator", "a topic must not hold ;")
    return _checked_length(b"p%b;%b" % (topic, message))


def encode_subscribe(topic: bytes) -> bytes:
    return _checked_length(b"s" + topic)


def encode_unsubscribe() -> bytes:
    return b"u"


def _checked_length(datagram: bytes) -> bytes:
    if len(datagram) > MAX_DATAGRAM:
        raise Refused("too_long", f"{len(datagram)} bytes do not fit into a datagram of {MAX_DATAGRAM}")
    return datagram
