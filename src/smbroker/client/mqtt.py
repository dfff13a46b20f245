"""The MQTT client: clean sessions, QoS 1; version 5 to publish, since only that one is told of a refusal, else 3.1.1.

publish ─► PUBACK within 10 s, or it failed; a Publisher keeps its connection for more
subscribe ─► SUBACK within 10 s, or it failed ─► messages, each acknowledged, until the broker closes
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from time import monotonic
from typing import Any

from smbroker.client.address import Address
from smbroker.client.errors import ClientError
from smbroker.client.stream import Stream
from smbroker.dialects.mqtt import Acks, Decoder, Malformed, Mixed, Numbered, Run, decode_filter
from smbroker.dialects.mqtt.fields import MAX_LENGTH, PUBACK
from smbroker.dialects.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Results,
    Subscribe,
    Topics,
    checked_name,
)
from smbroker.dialects.mqtt.reasons import BAD_USER_OR_PASSWORD, NOT_AUTHORIZED
from smbroker.model.errors import Refused
from smbroker.model.topic import MAX_TOPIC

__all__ = ["ACK_TIMEOUT", "Publisher", "Subscriber", "encode_publish", "encode_subscribe", "publish"]

ACK_TIMEOUT = 10.0  # seconds
FAILURE = 0x80  # reasons from here on
VERSION = 4  # 3.1.1
PUBLISH_VERSION = 5
NOT_ALLOWED = (5, NOT_AUTHORIZED)
WRONG = "the user or the password is wrong"
REFUSALS = {4: WRONG, BAD_USER_OR_PASSWORD: WRONG} | dict.fromkeys(NOT_ALLOWED, "nothing is allowed")


def encode_publish(topic: bytes, message: bytes) -> bytes:
    _check(topic, checked_name)
    if len(topic) + len(message) + 4 > MAX_LENGTH:
        raise Refused("message_too_long", f"the message has {len(message)} bytes, more than MQTT can say")
    return Publish(topic, message, 1, packet_id=1).encode(PUBLISH_VERSION)


def encode_subscribe(topic: bytes) -> bytes:
    _check(topic, decode_filter)
    return Subscribe(1, [Topics(topic, 1)]).encode(VERSION)


def _check(topic: bytes, judge: Callable[[bytes], object]) -> None:
    if len(topic) > MAX_TOPIC:
        raise Refused("topic_too_long", f"the topic has {len(topic)} bytes, more than {MAX_TOPIC}")
    try:
        topic.decode()
    except UnicodeDecodeError as error:
        raise Refused("topic_not_utf8", "the topic is not UTF-8") from error
    try:
        judge(topic)
    except Malformed as error:
        raise Refused(error.code, error.text) from error


def publish(address: Address, topic: bytes, message: bytes, ack_timeout: float = ACK_TIMEOUT) -> None:
    """Returns once the broker has acknowledged the message."""
    request = encode_publish(topic, message)
    with closing(Publisher(address, ack_timeout)) as publisher:
        publisher.send(request)


class Publisher:
    """One message at a time. Of no use after a ClientError: a late acknowledgement would pass for the next one's."""

    def __init__(self, address: Address, ack_timeout: float = ACK_TIMEOUT, client: str = "") -> None:
        """`client`: its id; the broker chooses one if there is none."""
        self._ack_timeout = ack_timeout
        self._talk = _Talk(address, ack_timeout, PUBLISH_VERSION, client)

    def send(self, request: bytes) -> None:
        """What `encode_publish` gave; returns once the broker has acknowledged it."""
        talk = self._talk
        talk.deadline = monotonic() + self._ack_timeout
        talk.stream.send(request)
        ack = talk.wait_for((Acks, Ack), "PUBACK")
        if isinstance(ack, Ack) and ack.reason >= FAILURE:
            why = "not allowed to publish to this topic" if ack.reason == NOT_AUTHORIZED else f"reason {ack.reason:#x}"
            raise ClientError("refused", f"the broker at {talk.stream.address} refused the message: {why}")

    def close(self) -> None:
        self._talk.stream.leave(Disconnect().encode(PUBLISH_VERSION))
        self._talk.stream.close()


class Subscriber:
    def __init__(self, address: Address, filters: Sequence[bytes], ack_timeout: float = ACK_TIMEOUT) -> None:
        self._talk = _Talk(address, ack_timeout)
        self._talk.stream.send(Subscribe(1, [Topics(one, 1) for one in filters]).encode(VERSION))
        codes = self._talk.wait_for(Results, "SUBACK").codes
        self.refused = [one for one, code in zip(filters, codes, strict=True) if code >= FAILURE]

    def run(self, deliver: Callable[[list[tuple[bytes, bytes]]], None]) -> None:
        """Delivers messages, as pairs of topic and payload, some at a time, until the broker closes (ClientError)."""
        self._talk.deadline = None
        while True:
            messages: list[tuple[bytes, bytes]] = []
            acks: list[bytes] = []
            for item in self._talk.next():
                if isinstance(item, Run):
                    messages += [(item.topic, payload) for payload in item.payloads]
                elif isinstance(item, Mixed):
                    messages += zip(item.topics, item.payloads, strict=True)
                elif isinstance(item, Numbered):
                    messages += [(item.topic, payload) for payload in item.payloads]
                    acks.append(item.acks)
                elif isinstance(item, Publish):
                    messages.append((item.topic, item.payload))
                    if item.qos:
                        acks.append(Ack(PUBACK, item.packet_id).encode(VERSION))
            deliver(messages)
            if acks:
                self._talk.stream.send(b"".join(acks))

    def close(self) -> None:
        self._talk.stream.leave(Disconnect().encode(VERSION))


class _Talk:
    """A connection after its CONNECT."""

    def __init__(self, address: Address, ack_timeout: float, version: int = VERSION, client: str = "") -> None:
        self.deadline: float | None = monotonic() + ack_timeout
        self._timeout = ack_timeout
        self.stream = Stream(address, ack_timeout)
        self._decoder = Decoder(MAX_LENGTH, version)
        self._items: list[Any] = []
        try:
            self.stream.send(Connect(version, client, user=address.user, password=address.password).encode())
            self._check(self.wait_for(Connack, "CONNACK").code)
        except ClientError:
            self.stream.close()
            raise

    def _check(self, code: int) -> None:
        if code:
            address, why = self.stream.address, REFUSALS.get(code, f"code {code}")
            if code in NOT_ALLOWED:
                why += f" to {address.user}" if address.user else "; log in with --user and --password-file"
            raise ClientError("refused", f"the broker at {address} refused the connection: {why}")

    def next(self) -> list[Any]:
        items, self._items = self._items, []
        return items or self._decoder.feed(self.stream.receive(self.deadline))

    def wait_for(self, kind: type | tuple[type, ...], name: str) -> Any:
        """The next packet of that kind; what comes before it waits."""
        before: list[Any] = []
        try:
            while True:
                items = self.next()
                for at, item in enumerate(items):
                    if isinstance(item, kind):
                        self._items = before + items[at + 1 :]
                        return item
                before += items
        except ClientError as error:
            if error.code != "no_answer":
                raise
            hint = f"; is {self.stream.address} an MQTT port?" if kind is Connack else ""  # others wait for more
            raise ClientError(error.code, f"no {name} within {self._timeout:g} s{hint}") from error
