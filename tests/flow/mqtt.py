"""A plain MQTT client for tests: it sends packets and looks at what comes, and does nothing by itself."""

import socket
from typing import Any

from dialects.packets import plain
from flow.house import LIMIT, Broker
from flow.wires import fresh
from smbroker.dialects.mqtt import Decoder
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Ping,
    Publish,
    Results,
    Subscribe,
    Topics,
    Unsubscribe,
    Will,
)

KINDS = ("udp", "padded", "typed", "mqtt", "tcp")
VERSIONS = [4, 5]


def topic() -> str:
    """That nobody has used."""
    return fresh().decode()


class Mqtt:
    """Connected, unless told otherwise: `Mqtt(broker, "id", version=5)`."""

    def __init__(
        self,
        broker: Broker,
        client: str = "",
        *,
        version: int = 4,
        clean: bool = True,
        kind: str = "mqtt",
        will: Will | None = None,
        keep_alive: int = 0,
        properties: f.Properties | None = None,
        connect: bool = True,
        over: Any = None,
        user: str | None = None,
        password: bytes | None = None,
    ) -> None:
        """`over`: instead of a TCP connection to the listener of that kind."""
        self.version = version
        self.tcp = over or broker.tcp(kind)
        self._decoder = Decoder(1 << 24, version)
        self._items: list[Packet] = []
        self._number = 0
        self.connack = Connack()
        if connect:
            about = properties or {}
            packet = Connect(version, client, clean, keep_alive, will, user=user, password=password, properties=about)
            self.tcp.send(packet.encode())
            self.connack = self.expect(Connack)

    def send(self, packet: Packet) -> None:
        self.tcp.send(packet.encode(self.version))

    def next(self, limit: float = LIMIT) -> Packet:
        while not self._items:
            data = self.tcp.some(limit)
            assert data, "closed by the broker"
            self._items += plain(self._decoder.feed(data))
        return self._items.pop(0)

    def expect(self, kind: type) -> Any:
        packet = self.next()
        assert isinstance(packet, kind), packet
        return packet

    def number(self) -> int:
        self._number += 1
        return self._number

    def subscribe(
        self, *filters: str, qos: int = 0, properties: f.Properties | None = None, **options: Any
    ) -> list[int]:
        topics = [Topics(text.encode(), qos, **options) for text in filters]
        self.send(Subscribe(self.number(), topics, properties or {}))
        found = self.expect(Results)
        assert found.packet_id == self._number
        return list(found.codes)

    def unsubscribe(self, *filters: str) -> list[int]:
        self.send(Unsubscribe(self.number(), [text.encode() for text in filters]))
        return list(self.expect(Results).codes)

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **more: Any) -> Ack | None:
        """Through to the last acknowledgement; returns the first."""
        number = self.number() if qos else 0
        self.send(Publish(topic.encode(), payload, qos, packet_id=number, **more))
        if not qos:
            return None
        ack: Ack = self.expect(Ack)
        assert (ack.kind, ack.packet_id) == (f.PUBACK if qos == 1 else f.PUBREC, number)
        if qos == 2 and ack.reason < 0x80:
            self.send(Ack(f.PUBREL, number))
            done: Ack = self.expect(Ack)
            assert (done.kind, done.packet_id, done.reason) == (f.PUBCOMP, number, 0)
        return ack

    def get(self) -> Publish:
        """The next message, acknowledged."""
        packet: Publish = self.expect(Publish)
        self.accept(packet)
        return packet

    def accept(self, packet: Publish) -> None:
        if packet.qos == 1:
            self.send(Ack(f.PUBACK, packet.packet_id))
        if packet.qos == 2:
            self.send(Ack(f.PUBREC, packet.packet_id))
            release = self._next_ack()
            assert (release.kind, release.packet_id) == (f.PUBREL, packet.packet_id)
            self.send(Ack(f.PUBCOMP, packet.packet_id))

    def _next_ack(self) -> Ack:
        """Messages may come before it; they wait."""
        before: list[Packet] = []
        while not isinstance(packet := self.next(), Ack):
            before.append(packet)
        self._items[:0] = before
        return packet

    def quiet(self) -> bool:
        """Whether nothing more has come: the broker answers a ping, and that is next."""
        self.send(Ping(f.PINGREQ))
        return self.next() == Ping(f.PINGRESP)

    def disconnect(self, reason: int = 0, properties: f.Properties | None = None) -> None:
        self.send(Disconnect(reason, properties or {}))
        assert self.closed()

    def drop(self) -> None:
        """Ends the connection without a word."""
        self.tcp.sock.shutdown(socket.SHUT_RDWR)
        self.tcp.sock.close()

    def closed(self) -> bool:
        return self.tcp.closed()

    def ended(self, reason: int) -> bool:
        """Whether the broker says why, if it can, and closes."""
        if self.version == 5:
            assert self.expect(Disconnect).reason == reason
        return self.closed()
