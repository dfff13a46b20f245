"""A topic: the exact name that a message is published under.

UTF-8 bytes of one or more levels separated by `/`; levels may be empty (`a/` has two).
Topics stay bytes all the way through the broker: wires and log hold UTF-8 anyway.
"""

from collections.abc import Callable

from smbroker.model.errors import Refused

MAX_TOPIC = 65_535  # bytes; what MQTT's two-byte length can say

Topic = bytes
Level = bytes


def checked_topic(raw: bytes) -> Topic:
    """The topic, or Refused with the reason: called once, where bytes come in."""
    if not raw:
        raise Refused("topic_empty", "the topic is empty")
    if len(raw) > MAX_TOPIC:
        raise Refused("topic_too_long", f"the topic has {len(raw)} bytes, more than {MAX_TOPIC}")
    if b"\0" in raw:
        raise Refused("topic_nul", "the topic holds a NUL")
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise Refused("topic_not_utf8", "the topic is not UTF-8") from error
    return raw


def published_topic(raw: bytes) -> Topic:
    """The topic of a client's message. Those that begin with `$` are the broker's own."""
    topic = checked_topic(raw)
    if topic.startswith(b"$"):
        raise Refused("topic_reserved", "topics that begin with $ are the broker's own")
    return topic


class KnownTopics(dict[bytes, Topic]):
    """Topics that were checked before, by the bytes they came in: a message then costs one look-up.

    Bounded, because topics are strangers' text. As the same object is handed out each time, comparing
    and looking up topics further on is cheap too.
    """

    MOST = 10_000
    LONGEST = 256  # bytes; longer ones are checked each time

    def __init__(self, check: Callable[[bytes], Topic]) -> None:
        super().__init__()
        self._check = check

    def __missing__(self, raw: bytes) -> Topic:
        topic = self._check(raw)
        if len(raw) <= self.LONGEST:
            if len(self) >= self.MOST:
                self.clear()
            self[raw] = topic
        return topic


def levels_of(topic: Topic) -> list[Level]:
    return topic.split(b"/")
