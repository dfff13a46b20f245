"""pipe: UDP, every request is answered.

    publish      P|topic|message                     split at the first two |
    subscribe    S|topic                             the subscription # is every topic
    to client    TOPIC: topic - MESSAGE: message
    answers      Hello Publisher!   Hello Subscriber!   ERROR: reason

Apart from # alone a subscription is exact: `+` and `a/#` are literal. A publish to # is refused.
"""

from smbroker.model.commands import Command, Subscribe
from smbroker.model.errors import ProtocolError, Refused, Unfit
from smbroker.model.filter import REST, exact
from smbroker.model.framing import Framer, prefix_framer
from smbroker.model.message import Kind
from smbroker.model.topic import KnownTopics, Topic, checked_topic, published_topic

MAX_DATAGRAM = 65_507  # the largest that UDP over IPv4 carries; the dialect has no limit of its own

PUBLISH = b"P|"
SUBSCRIBE = b"S|"
SEPARATOR = b"|"
WILDCARD = b"#"
BYTES = Kind.BYTES

HELLO_PUBLISHER = b"Hello Publisher!"
HELLO_SUBSCRIBER = b"Hello Subscriber!"
ERROR = b"ERROR: "


def decode(datagram: bytes) -> Command:
    if not datagram:
        raise ProtocolError("empty", "empty datagram")
    if datagram.startswith(PUBLISH):
        topic, separator, message = datagram[2:].partition(SEPARATOR)
        if not separator:
            raise ProtocolError("malformed", "a publish without a second |")
        return _published[topic], message, BYTES, HELLO_PUBLISHER
    if datagram.startswith(SUBSCRIBE):
        topic = _topic(datagram[2:])
        return Subscribe((REST,) if topic == WILDCARD else exact(topic), reply=HELLO_SUBSCRIBER)
    raise ProtocolError("malformed", "neither publish nor subscribe")


def _topic(raw: bytes) -> Topic:
    if not raw:
        raise ProtocolError("topic_empty", "the topic is empty")
    return checked_topic(raw)


def _received(raw: bytes) -> Topic:
    if raw == WILDCARD:
        raise Refused("topic_wildcard", "a published topic must not be #")
    return published_topic(_topic(raw))


_published = KnownTopics(_received)


def framer(topic: Topic) -> Framer:
    if SEPARATOR in topic:
        raise Unfit("topic_separator", "the topic holds |")
    prefix = b"TOPIC: %b - MESSAGE: " % topic
    if len(prefix) > MAX_DATAGRAM:
        raise Unfit("too_long", "the topic fills the datagram")
    return prefix_framer(prefix, MAX_DATAGRAM)


def refusal(text: str) -> bytes:
    return ERROR + text.encode()


def encode_publish(topic: Topic, message: bytes) -> bytes:
    if SEPARATOR in topic:  # the broker would take the rest of the topic for the message
        raise Refused("topic_separator", "the topic holds |")
    return _checked_length(b"P|%b|%b" % (topic, message))


def encode_subscribe(topic: bytes) -> bytes:
    return _checked_length(SUBSCRIBE + topic)


def _checked_length(datagram: bytes) -> bytes:
    if len(datagram) > MAX_DATAGRAM:
        raise Refused("too_long", f"{len(datagram)} bytes do not fit into a datagram of {MAX_DATAGRAM}")
    return datagram
