"""An MQTT session by hand: what it costs to send rows and to have them acknowledged."""

from types import SimpleNamespace
from typing import Any

from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack
from smbroker.model.filter import exact
from smbroker.model.message import Columns, Dialect, Origin
from smbroker.server.config import MqttConfig
from smbroker.server.mqtt import acknowledging
from smbroker.server.mqtt.session import ACKNOWLEDGED, MqttSession
from smbroker.server.mqtt.subscriptions import Subscription

ORIGIN = Origin(Dialect.MQTT, "127.0.0.1", 1)


def session(window: int) -> MqttSession:
    """Connected, without a log; what it sends is dropped."""
    stats = SimpleNamespace(delivered={Dialect.MQTT: 0})
    turn = SimpleNamespace(delivery=SimpleNamespace(put=lambda _to, _frames: None), stats=stats)
    service: Any = SimpleNamespace(config=MqttConfig(max_inflight=window), turn=turn)
    made, connection = MqttSession(service, "client"), SimpleNamespace(full=False)
    made.connection = connection  # type: ignore[assignment]
    return made


def send(to: MqttSession, count: int) -> int:
    """How many of a row leave."""
    columns = Columns()
    columns.add_packets(b"t", ORIGIN, 4, b"\x32\x06\x00\x01t\x00\x01x" * count, count, 1, ACKNOWLEDGED)
    return to.send_run(columns, 0, count, Subscription(exact(b"t"), "", 1))


def test_no_identifier_is_looked_for_while_the_window_is_full() -> None:
    """Where all are in flight, that would be a look at each of them."""
    one = session(20)
    assert send(one, 30) == 20
    last = one._last_id
    assert send(one, 30) == 0
    assert one._last_id == last


def test_acknowledgements_with_a_reason_leave_a_row_a_row() -> None:
    one = session(20)
    assert send(one, 20) == 20
    connection: Any = SimpleNamespace(session=one)
    for number in range(1, 11):
        acknowledging.ack(connection, Ack(f.PUBACK, number, 0x10))
    assert len(one.inflight) == 10
    assert not one.inflight._single
