"""How the devices reach the broker: the only place of the simulation that has sockets.

Every device that speaks over UDP has a socket, and so an address, of its own; padded publishers
connect for each message, as the existing ones do; an MQTT device keeps its connection, and after
trouble opens another with its next message. What the broker sends is read by threads and waits
in `heard`.
"""

from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from smbroker.cli.devices.sensors import Message
from smbroker.client import mqtt, padded, pipe, semicolon, soh, typed
from smbroker.client.address import Address
from smbroker.client.datagrams import Datagrams
from smbroker.client.errors import ClientError
from smbroker.model.message import Dialect

ANSWER_TIMEOUT = 5.0  # seconds; a broker that takes longer is not well
EVERYTHING = b"#"
DIALECTS = {  # those of a listener that devices can publish to; typed publishes over UDP, which `tcp` has not
    "udp": (Dialect.SOH, Dialect.PIPE, Dialect.SEMICOLON),
    "soh": (Dialect.SOH,),
    "pipe": (Dialect.PIPE,),
    "semicolon": (Dialect.SEMICOLON,),
    "padded": (Dialect.PADDED,),
    "tcp": (Dialect.PADDED, Dialect.MQTT),
    "typed": (Dialect.TYPED,),
    "mqtt": (Dialect.MQTT,),
}
ENCODE: dict[Dialect, Callable[[bytes, bytes], bytes]] = {
    Dialect.SOH: soh.encode_publish,
    Dialect.PIPE: pipe.encode_publish,
    Dialect.SEMICOLON: semicolon.encode_publish,
    Dialect.MQTT: mqtt.encode_publish,
}


class Wires:
    def __init__(self, addresses: Mapping[Dialect, Address]) -> None:
        self._addresses = addresses
        self._sockets: dict[tuple[str, Dialect], Datagrams] = {}
        self._connections: dict[str, mqtt.Publisher] = {}

    def publish(self, message: Message) -> None:
        """Raises ClientError if the broker does not take it, as far as the dialect lets us know."""
        topic, text, dialect = message.topic.encode(), message.text.encode(), message.dialect
        if dialect is Dialect.PADDED:
            padded.publish(self._addresses[dialect], topic, text, ANSWER_TIMEOUT)
            return
        if dialect is Dialect.MQTT:
            self._publish_connected(message.device, ENCODE[dialect](topic, text))
            return
        datagrams = self._socket(message.device, dialect)
        if dialect is Dialect.TYPED:
            datagrams.send(typed.encode_publish(topic, text, message.kind))
        else:
            datagrams.send(ENCODE[dialect](topic, text))
        if dialect is Dialect.PIPE:
            _check_answer(datagrams.receive(ANSWER_TIMEOUT))
        else:
            datagrams.check_refused()

    def close(self) -> None:
        for datagrams in self._sockets.values():
            datagrams.close()
        for publisher in self._connections.values():
            publisher.close()

    def _publish_connected(self, device: str, request: bytes) -> None:
        if device not in self._connections:
            self._connections[device] = mqtt.Publisher(self._addresses[Dialect.MQTT], ANSWER_TIMEOUT, device)
        try:
            self._connections[device].send(request)
        except ClientError:
            self._connections.pop(device).close()
            raise

    def _socket(self, device: str, dialect: Dialect) -> Datagrams:
        if (device, dialect) not in self._sockets:
            self._sockets[device, dialect] = Datagrams(self._addresses[dialect])
        return self._sockets[device, dialect]


def _check_answer(answers: list[bytes]) -> None:
    if not answers:
        raise ClientError("no_answer", f"no answer from the broker within {ANSWER_TIMEOUT:g} s")
    if answers[-1].startswith(b"ERROR"):
        raise ClientError("refused", answers[-1].decode(errors="backslashreplace"))


class Heard(NamedTuple):
    dialect: Dialect
    topic: str
    text: str


class Ears:
    """Everything in semicolon, and some topics in typed; each where it is served."""

    def __init__(self, addresses: Mapping[Dialect, Address], client: str, topics: Iterable[str]) -> None:
        self._heard: SimpleQueue[Heard] = SimpleQueue()
        self._all: semicolon.Subscriber | None = None
        self._some: typed.Subscriber | None = None
        if Dialect.SEMICOLON in addresses:
            self._all = semicolon.Subscriber(addresses[Dialect.SEMICOLON], EVERYTHING)
            self._all.subscribe()
            Thread(target=self._hear_all, args=(self._all,), daemon=True).start()
        if Dialect.TYPED in addresses:
            self._some = typed.Subscriber(addresses[Dialect.TYPED], client)
            for topic in topics:
                self._some.subscribe(topic.encode(), keep=False)
            Thread(target=self._hear_some, args=(self._some,), daemon=True).start()

    def heard(self) -> list[Heard]:
        """What has come since the last call."""
        batch = []
        try:
            while True:
                batch.append(self._heard.get_nowait())
        except Empty:
            return batch

    def subscribe_again(self) -> None:
        """Semicolon subscribers are not told when they are dropped, as SIGUSR1 makes the broker do."""
        if self._all:
            self._all.subscribe()

    def close(self) -> None:
        for subscriber in (self._all, self._some):
            if subscriber:
                subscriber.close()

    def _hear_all(self, subscriber: semicolon.Subscriber) -> None:
        while True:
            try:
                batch = subscriber.receive()
            except (ClientError, ValueError, OSError):  # the broker is gone, or we are going
                return
            for datagram in batch:
                topic, _, text = datagram.partition(b";")
                self._hear(Dialect.SEMICOLON, topic, text)

    def _hear_some(self, subscriber: typed.Subscriber) -> None:
        while True:
            try:
                batch = subscriber.receive()
            except (ClientError, ValueError, OSError):
                return
            for message in batch:
                text = message.text if isinstance(message.text, bytes) else message.text.encode()
                self._hear(Dialect.TYPED, message.topic, text)

    def _hear(self, dialect: Dialect, topic: bytes, text: bytes) -> None:
        self._heard.put(Heard(dialect, topic.decode(errors="backslashreplace"), text.decode(errors="backslashreplace")))
