"""Wills: published when a connection ends without a DISCONNECT, or some time later if the client stays away.

One that waits is in the state with its session (`keeping`); each client has one at most.
"""

import time
from asyncio import TimerHandle
from collections.abc import Callable
from functools import partial

from smbroker.dialects import mqtt
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Will
from smbroker.model.commands import Publish
from smbroker.model.errors import Refused
from smbroker.model.grant import EVERYTHING, NOTHING
from smbroker.model.message import Dialect, Extra, Kind, Origin
from smbroker.model.rights import Identity
from smbroker.server.client import Client
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.turn import Turn


class Wills:
    def __init__(self, turn: Turn, settled: Callable[[str], None]) -> None:
        self._turn = turn
        self._settled = settled  # is told of which client a will waits no more
        self._waiting: dict[str, tuple[TimerHandle, Callable[[], None]]] = {}

    def send(self, connection: Client, session: MqttSession, will: Will) -> None:
        """Now, or after its delay."""
        delay = min(will.properties.get(f.WILL_DELAY, 0), session.expiry)
        if delay:
            session.will, session.will_due = will, time.time() + delay
            self._send_in(delay, session.name, connection, will)
        else:
            self._publish(connection, will)

    def restored(self, client: str, will: Will, seconds: float, user: str | None) -> None:
        """One that was waiting when the broker ended, or whose client was here when it was killed."""
        by, access = Client(Origin(Dialect.MQTT, client=client)), self._turn.access
        by.grant = EVERYTHING
        if access.on:  # nobody knows any more from where it came: rules by address give it nothing
            known = user is None or user in access.users.all
            by.grant = access.rights.grant(Identity(Dialect.MQTT, "", user, client)) if known else NOTHING
        self._send_in(seconds, client, by, will)

    def settle(self, client: str, publish: bool = True) -> None:
        """A will that waits: it is published, or forgotten because the client is back [MQTT-3.1.3-9]."""
        timer, send = self._waiting.pop(client, (None, None))
        if timer and send:
            timer.cancel()
            if publish:
                send()
            self._settled(client)

    def _send_in(self, seconds: float, client: str, by: Client, will: Will) -> None:
        timer = self._turn.loop.call_later(seconds, self.settle, client)
        self._waiting[client] = timer, partial(self._publish, by, will)

    def _publish(self, by: Client, will: Will) -> None:
        grant = by.grant
        if will.topic.startswith(b"$") or (grant.limited and not grant.publishes[will.topic]):
            self._turn.stats.dropped["not_allowed"] += 1
            return
        message: Publish = (will.topic, will.payload, Kind.BYTES, b"")
        extra = Extra(will.qos, will.retain, mqtt.to_pairs(will.properties, time.time()))
        try:
            self._turn.publish_with(by, message, extra)
        except Refused as error:  # max_payload was lowered since it was given
            self._turn.reject(by, error)
        self._turn.begin()
