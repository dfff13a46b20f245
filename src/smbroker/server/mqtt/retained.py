"""Retained messages: the last one of each topic that was published as such; an empty one removes it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from smbroker.dialects import mqtt
from smbroker.model.message import Columns, Dialect, Extra, Origin
from smbroker.model.stats import Stats
from smbroker.model.topic import Topic

ROW_BYTES = 200  # what one takes besides topic and payload


@dataclass(frozen=True, slots=True)
class Retained:
    payload: bytes
    extra: Extra
    origin: Origin

    @property
    def expired(self) -> bool:
        when = mqtt.expires(self.extra.properties) if self.extra.properties else None
        return when is not None and when <= time.time()

    @property
    def qos(self) -> int:
        return self.extra.qos if self.origin.dialect is Dialect.MQTT else 1


class RetainedMessages:
    def __init__(self, most: int, most_bytes: int, stats: Stats) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._stats = stats
        self._bytes = 0
        self.all: dict[Topic, Retained] = {}
        self.changed: Callable[[Topic, Retained | None], None] = lambda _topic, _message: None

    def take(self, columns: Columns) -> None:
        """Remembers those of the columns that are to be retained."""
        for row, extra in columns.own_extras.items():  # packets that are taken as they came are not retained
            if extra.retain:
                self.put(columns.topics[row], Retained(columns.payloads[row], extra, columns.origins[row]))

    def put(self, topic: Topic, message: Retained, *, tell: bool = True) -> None:
        old = self.all.pop(topic, None)
        if old:
            self._bytes -= _size(topic, old)
        kept: Retained | None = message if message.payload else None  # an empty one removes it [MQTT-3.3.1-6]
        if kept and (len(self.all) >= self._most or self._bytes + _size(topic, kept) > self._most_bytes):
            self._stats.dropped["retained_full"] += 1
            kept = None
        if kept:
            self.all[topic] = kept
            self._bytes += _size(topic, kept)
        if tell and (old or kept):
            self.changed(topic, kept)

    def get(self, topic: Topic) -> Retained | None:
        message = self.all.get(topic)
        if message and message.expired:
            self._bytes -= _size(topic, message)
            del self.all[topic]
            self.changed(topic, None)
            return None
        return message


def _size(topic: Topic, message: Retained) -> int:
    client = len(message.origin.client or "")
    return len(topic) + len(message.payload) + message.extra.bytes + client + ROW_BYTES
