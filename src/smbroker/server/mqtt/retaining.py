"""The retained messages that new subscriptions of a session begin with, a few at a time.

All retained topics are looked through once for all subscriptions that wait for it, some in each turn: neither many
topics nor many wildcards may hold the broker up. It pauses while the client has enough to read or to acknowledge.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from smbroker.core.router import Router
from smbroker.model.filter import exact_topic
from smbroker.model.message import Dialect
from smbroker.model.topic import Topic
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.mqtt.subscriptions import Subscription

if TYPE_CHECKING:
    from smbroker.server.mqtt.connection import MqttConnection

STEP = 1_000  # topics that are looked at in one turn
STEP_BYTES = 1 << 20  # … and bytes that are sent


class Retaining:
    def __init__(self, session: MqttSession, connection: "MqttConnection") -> None:
        self._session = session
        self._connection = connection
        self._wanted: list[Subscription] = []  # for the next walk
        self._walk: Iterator[tuple[Topic, list[Subscription]]] | None = None
        self._waking = False

    def begin(self, subscriptions: list[Subscription]) -> None:
        self._wanted += subscriptions
        if not self._waking:
            self._step()

    def wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._connection.mqtt.turn.later(self._step)

    def _step(self) -> None:
        self._waking = False
        session = self._session
        if session.retaining is not self:
            return
        session.pump()
        sent = 0
        for _ in range(STEP):
            if not session.room or self._connection.full:
                return  # goes on with an acknowledgement, or when the client has read
            if sent > STEP_BYTES:
                break
            found = next(self._walk, None) if self._walk else None
            if found is not None:
                sent += self._send(*found)
            elif self._wanted:
                self._walk, self._wanted = self._walk_for(self._wanted), []
            else:
                session.retaining = None
                session.pump()
                return
            session.pump()
        self.wake()

    def _send(self, topic: Topic, subscriptions: list[Subscription]) -> int:
        """How many bytes."""
        session = self._session
        if session.grant.limited and not session.grant.subscribes[topic]:
            return 0
        message = session.mqtt.retained.get(topic) if subscriptions else None
        if message is None:
            return 0
        local = message.origin.dialect is Dialect.MQTT and message.origin.client == session.name  # [MQTT-3.8.3-3]
        current = [one for one in subscriptions if session.known.all.get(one.key) is one]
        meant = [one for one in current if not (local and one.no_local)]
        for one in meant:
            session.send_retained(one, topic, message.payload, message.extra, message.qos)
        return len(message.payload) * len(meant)

    def _walk_for(self, subscriptions: list[Subscription]) -> Iterator[tuple[Topic, list[Subscription]]]:
        """Topics, and those of the subscriptions that match; none for most."""
        router = Router[Subscription]()
        for one in subscriptions:
            topic = exact_topic(one.pattern)
            if topic is not None:
                yield topic, [one]
            else:
                router.subscribe(one.pattern, one)
        if not router.empty:
            for topic in list(self._session.mqtt.retained.all):
                yield topic, router.match(topic)
