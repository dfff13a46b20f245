"""$SYS/broker/…: the broker about itself, under the names that existing tools expect.

These messages are relayed and retained, but neither logged nor counted as received.
"""

import time

from smbroker import __version__
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin
from smbroker.server.mqtt.retained import Retained
from smbroker.server.mqtt.service import Mqtt

EXTRA = Extra(0, True)
ORIGIN = Origin(Dialect.MQTT)


class Sys:
    def __init__(self, service: Mqtt, interval: float) -> None:
        self._mqtt = service
        self._interval = interval
        self._started = time.monotonic()
        self._timer = service.turn.loop.call_later(0, self._publish) if interval else None

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _values(self) -> dict[str, str]:
        self._mqtt.turn.lanes.account()
        service, stats = self._mqtt, self._mqtt.turn.stats
        return {
            "version": f"smbroker version {__version__}",
            "uptime": f"{time.monotonic() - self._started:.0f} seconds",
            "clients/connected": str(len(service.here)),
            "clients/total": str(len(service.sessions)),
            "clients/disconnected": str(len(service.sessions) - len(service.here)),
            "messages/received": str(sum(stats.received.values())),
            "messages/sent": str(sum(stats.delivered.values())),
            "subscriptions/count": str(sum(service.turn.sessions.by_dialect.values())),
            "retained messages/count": str(len(service.retained.all)),
        }

    def _publish(self) -> None:
        turn = self._mqtt.turn
        turn.settle()
        columns = Columns(received=time.time_ns() // 1000)
        for name, value in self._values().items():
            columns.extras[len(columns)] = EXTRA
            topic, payload = f"$SYS/broker/{name}".encode(), value.encode()
            self._mqtt.retained.put(topic, Retained(payload, EXTRA, ORIGIN), tell=False)
            columns.topics.append(topic)
            columns.payloads.append(payload)
            columns.kinds.append(Kind.STRING)
            columns.origins.append(ORIGIN)
        turn.delivery.deliver(columns)
        if turn.commits:
            turn.committed.deliver(columns)
        turn.begin()
        self._timer = turn.loop.call_later(self._interval, self._publish)
