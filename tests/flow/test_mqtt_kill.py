"""MQTT across kills of the broker and of clients: nothing acknowledged is lost, QoS 2 comes exactly once.

SMB_LONG=1: the full number of rounds.
"""

import random
import sys
import time
from pathlib import Path

import pytest

from flow.ends import ENDS, KEEP, KINDS, LONG, end, kill, lasting, new_numbers, numbers, publish_all
from flow.house import LIMIT, Broker, wait_for
from flow.lasting import Home, killed
from flow.mqtt import Mqtt
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Publish, Results, Subscribe, Topics, Will
from smbroker.log.state import State


def test_a_thousand_acknowledged_messages_for_an_absent_session(tmp_path: Path) -> None:
    rounds = 20 if LONG else 2
    for number in range(rounds + 1):
        with Broker(kinds=KINDS, data=tmp_path) as broker:
            client = lasting(broker, "absent", 4 + number % 2)
            if number:
                assert client.connack.present
                assert new_numbers(client, number * 1_000, 1_000) == list(range(number * 1_000, (number + 1) * 1_000))
                assert client.quiet()
            else:
                client.subscribe("t/+", qos=1)
            client.disconnect()
            publish_all(broker, b"t/x", range((number + 1) * 1_000, (number + 2) * 1_000))
            kill(broker)


# --- wills ---


def delayed(topic: bytes, seconds: int) -> Will:
    about: f.Properties = {f.WILL_DELAY: seconds, f.USER: [("a", "b")]}
    return Will(topic, b"dead", 1, properties=about)


@ENDS
def test_a_will_that_waits_survives_the_broker(tmp_path: Path, how: str) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        watcher = lasting(broker, "watcher")
        watcher.subscribe("will/+", qos=1)
        watcher.disconnect()
        lasting(broker, "mortal", will=delayed(b"will/a", 2)).disconnect(0x04)
        returns = lasting(broker, "returns", will=delayed(b"will/b", 1_000))
        returns.disconnect(0x04)
        end(broker, how)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        watcher = lasting(broker, "watcher")
        message = watcher.get()
        assert (message.topic, message.payload, message.qos) == (b"will/a", b"dead", 1)
        assert message.properties == {f.USER: [("a", "b")]}
        assert lasting(broker, "returns").connack.present
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        watcher = lasting(broker, "watcher")
        assert watcher.quiet(), "each once"


def test_the_will_of_a_client_that_was_here_when_the_broker_was_killed(tmp_path: Path) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        watcher = lasting(broker, "watcher")
        watcher.subscribe("will", qos=1)
        lasting(broker, "mortal", will=delayed(b"will", 1))
        kill(broker)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        assert lasting(broker, "watcher").get().payload == b"dead"


# --- QoS 2 ---


def test_qos_2_is_exactly_once_if_the_broker_ends_twice_before_anybody_returns(tmp_path: Path) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        reader, writer = lasting(broker, "reads", 4), lasting(broker, "writes", 4)
        reader.subscribe("t", qos=2)
        writer.send(Publish(b"t", b"once", 2, packet_id=5))
        assert writer.expect(Ack) == Ack(f.PUBREC, 5)
        message = reader.expect(Publish)
        reader.send(Ack(f.PUBREC, message.packet_id))
        assert reader.expect(Ack).kind == f.PUBREL
        kill(broker)
    with Broker(kinds=KINDS, data=tmp_path):
        pass
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        reader, writer = lasting(broker, "reads", 4), lasting(broker, "writes", 4)
        writer.send(Publish(b"t", b"once", 2, dup=True, packet_id=5))
        assert writer.expect(Ack) == Ack(f.PUBREC, 5)
        assert reader.expect(Ack) == Ack(f.PUBREL, message.packet_id)
        reader.send(Ack(f.PUBCOMP, message.packet_id))
        assert reader.quiet()


SLOW_DISK = """
import os, sys, time
from smbroker.cli.broker import main
from smbroker.log.disk import Disk

def sync_data(self, handle, of=Disk.sync_data):
    while os.path.exists(sys.argv[2] + "/slow"):
        time.sleep(0.01)
    of(self, handle)

Disk.sync_data = sync_data
sys.exit(main())
"""


def test_qos_2_is_not_released_to_a_client_that_returns_before_that_is_on_disk(tmp_path: Path) -> None:
    with Broker(kinds=KINDS, data=tmp_path, program=(sys.executable, "-c", SLOW_DISK)) as broker:
        reader, writer = lasting(broker, "reads"), lasting(broker, "writes")
        reader.subscribe("t", qos=2)
        writer.send(Publish(b"t", b"once", 2, packet_id=5))
        message = reader.expect(Publish)
        (tmp_path / "slow").touch()
        reader.send(Ack(f.PUBREC, message.packet_id))
        assert reader.quiet()
        reader.drop()
        reader = lasting(broker, "reads")
        assert reader.quiet()
        (tmp_path / "slow").unlink()
        assert reader.expect(Ack) == Ack(f.PUBREL, message.packet_id)
        kill(broker)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        reader = lasting(broker, "reads")
        assert reader.expect(Ack) == Ack(f.PUBREL, message.packet_id)
        assert reader.quiet()


class Side:
    """A client that survives its connections: what it has begun it finishes."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.client: Mqtt | None = None

    def step(self, broker: Broker) -> int:
        """How many packets were handled; connects first, if it is not."""
        try:
            if self.client is None:
                self.client = lasting(broker, self.name, self.version)
                self.begin(self.client)
            packet = self.client.next(0.01)
            self.handle(self.client, packet)
        except TimeoutError:
            return 0
        except (AssertionError, OSError):
            self.drop()
        return 1

    def drop(self) -> None:
        if self.client:
            self.client.tcp.sock.close()
        self.client = None

    def begin(self, client: Mqtt) -> None:
        raise NotImplementedError

    def handle(self, client: Mqtt, packet: object) -> None:
        raise NotImplementedError


class Publisher(Side):
    def __init__(self, version: int, count: int) -> None:
        super().__init__("publisher", version)
        self.todo = list(range(count))
        self.under_way: dict[int, tuple[int, bool]] = {}  # packet id: message, whether it is released

    @property
    def done(self) -> bool:
        return not self.todo and not self.under_way

    def begin(self, client: Mqtt) -> None:
        for number, (message, released) in self.under_way.items():
            if released:
                client.send(Ack(f.PUBREL, number))
            else:
                client.send(Publish(b"q2", b"%d" % message, 2, dup=True, packet_id=number))
        self._more(client)

    def _more(self, client: Mqtt) -> None:
        while self.todo and len(self.under_way) < 20:
            number = next(number for number in range(1, 100) if number not in self.under_way)
            message = self.todo.pop(0)
            self.under_way[number] = message, False
            client.send(Publish(b"q2", b"%d" % message, 2, packet_id=number))

    def handle(self, client: Mqtt, packet: object) -> None:
        assert isinstance(packet, Ack)
        if packet.kind == f.PUBREC and packet.packet_id in self.under_way:
            self.under_way[packet.packet_id] = self.under_way[packet.packet_id][0], True
            client.send(Ack(f.PUBREL, packet.packet_id))
        elif packet.kind == f.PUBCOMP:
            self.under_way.pop(packet.packet_id, None)
            self._more(client)


class Subscriber(Side):
    def __init__(self, version: int) -> None:
        super().__init__("subscriber", version)
        self.received: list[int] = []
        self._open: set[int] = set()  # packet ids that are not released

    def begin(self, client: Mqtt) -> None:
        """The session is there."""

    def handle(self, client: Mqtt, packet: object) -> None:
        if isinstance(packet, Publish):
            assert packet.qos == 2
            if packet.packet_id not in self._open:
                self._open.add(packet.packet_id)
                self.received.append(int(packet.payload))
            client.send(Ack(f.PUBREC, packet.packet_id))
        elif isinstance(packet, Ack) and packet.kind == f.PUBREL:
            self._open.discard(packet.packet_id)
            client.send(Ack(f.PUBCOMP, packet.packet_id))


@pytest.mark.parametrize("version", [4, 5] if LONG else [5])
def test_qos_2_is_exactly_once_whoever_is_killed(tmp_path: Path, version: int) -> None:
    chance = random.Random(version)
    count, kills = (2_000, 20) if LONG else (100, 2)
    publisher, subscriber = Publisher(version, count), Subscriber(version)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "subscriber", version)
        client.subscribe("q2", qos=2)
        client.disconnect()
        end(broker, "stop")
    for left in range(kills, -1, -1):
        with Broker(kinds=KINDS, data=tmp_path) as broker:
            steps = chance.randrange(2 * count // kills) * 4 if left else 1 << 30
            deadline = time.monotonic() + 60
            while steps > 0 and not (publisher.done and len(subscriber.received) >= count):
                handled = (0 if publisher.done else publisher.step(broker)) + subscriber.step(broker)
                steps -= handled
                deadline = time.monotonic() + 60 if handled else deadline
                if handled and chance.random() < 0.02:
                    chance.choice([publisher, subscriber]).drop()
                assert time.monotonic() < deadline, (publisher.under_way, len(subscriber.received))
            if left:
                kill(broker)
            else:
                client = subscriber.client or lasting(broker, "subscriber", version)
                publisher.drop()
                wait_for(lambda: subscriber.step(broker) == 0, limit=LIMIT)
        publisher.drop()
        subscriber.drop()
    assert sorted(subscriber.received) == list(range(count))


# --- notes ---


def test_notes_of_a_client_with_a_long_id_cost_nobody_anything(tmp_path: Path) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "c" * 65_000)
        pairs = [(Publish(b"t", b"%d" % at, 2, packet_id=at), Ack(f.PUBREL, at)) for at in range(1, 501)]
        client.tcp.send(b"".join(packet.encode(5) for pair in pairs for packet in pair))
        for _ in range(1_000):
            assert client.expect(Ack).reason == 0
        publish_all(broker, b"t", range(501, 511))
        kill(broker)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        reader = Mqtt(broker, version=5)
        reader.subscribe("t", qos=1, properties={f.USER: [("smb-replay", "all")]})
        assert numbers(reader, 510) == list(range(1, 511))


def test_what_a_session_had_received_is_not_the_next_ones(tmp_path: Path) -> None:
    """Of the same client: it asked for a new session, and its identifiers begin anew."""
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "c")
        client.send(Publish(b"t", b"1", 2, packet_id=1))
        assert client.expect(Ack) == Ack(f.PUBREC, 1)
        Mqtt(broker, "c", version=5, clean=True, properties=KEEP)
        kill(broker)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "c")
        assert client.connack.present
        client.publish("t", b"2", 2)
        reader = Mqtt(broker, version=5)
        reader.subscribe("t", qos=1, properties={f.USER: [("smb-replay", "all")]})
        assert numbers(reader, 2) == [1, 2]


def complete(home: Home, offset: int) -> None:
    """Waits until the state says that all of the log up to there is in it."""
    wait_for(
        lambda: home.saved("SELECT value FROM facts WHERE name = 'mqtt'") == [(offset,)], "the state to be complete"
    )


def test_what_an_ended_session_had_received_is_not_the_next_ones_however_long_ago(tmp_path: Path) -> None:
    """Though no message has come since: what the log says of the old one must not be applied to the new one."""
    home = Home(tmp_path, kinds=("mqtt",))
    with killed(home.broker()) as broker:
        client = lasting(broker, "c")
        client.send(Publish(b"t", b"1", 2, packet_id=5))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
        client.drop()
        client = Mqtt(broker, "c", version=5, clean=False, properties={f.SESSION_EXPIRY: 0})
        client.send(Ack(f.PUBREL, 5))
        assert client.expect(Ack) == Ack(f.PUBCOMP, 5)
        client.disconnect()
        lasting(broker, "c")
        complete(home, 1)
    with home.broker() as broker:
        client = lasting(broker, "c")
        assert client.connack.present
        client.send(Publish(b"t", b"2", 2, packet_id=5))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
    assert home.rows("payload") == [(b"1",), (b"2",)]


def test_a_state_that_is_ahead_of_a_log_begun_anew_learns_from_it_again(tmp_path: Path) -> None:
    home = Home(tmp_path, kinds=("mqtt",))
    home.data.mkdir()
    state = State(home.data / "state.db")
    state.save_fact("mqtt", 1_000)
    state.close()
    with killed(home.broker()) as broker:
        complete(home, 0)
        client = lasting(broker, "c")
        client.send(Publish(b"t", b"1", 2, packet_id=5))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
    with home.broker() as broker:
        client = lasting(broker, "c")
        client.send(Publish(b"t", b"1", 2, packet_id=5, dup=True))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
    assert home.rows("payload") == [(b"1",)]


def test_what_a_client_was_told_has_ended_does_not_come_back_after_a_kill(tmp_path: Path) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client, begun_anew = lasting(broker, "unsubscribed"), lasting(broker, "clean")
        for each in (client, begun_anew):
            each.subscribe("gone/#", "stays", qos=1)
        begun_anew.disconnect()
        assert client.unsubscribe("gone/#") == [0]
        assert not Mqtt(broker, "clean", version=5).connack.present
        kill(broker)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        assert not lasting(broker, "clean").connack.present
        client = lasting(broker, "unsubscribed")
        assert client.connack.present
        publish_all(broker, b"gone/x", range(1))
        publish_all(broker, b"stays", range(1, 2))
        assert numbers(client, 1) == [1]


@pytest.mark.parametrize("name", ["$share/group/t", "t"])
def test_a_message_without_an_offset_that_was_received_is_released_after_a_restart(tmp_path: Path, name: str) -> None:
    """Neither a shared nor a retained message is sent again, and its identifier is not used until it is free."""
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "client")
        if name == "t":
            Mqtt(broker).publish("t", b"1", 2, retain=True)
        client.subscribe(name, qos=2)
        if name != "t":
            Mqtt(broker).publish("t", b"1", 2)
        message: Publish = client.expect(Publish)
        client.send(Ack(f.PUBREC, message.packet_id))
        assert client.expect(Ack).kind == f.PUBREL
        client.drop()
        assert Mqtt(broker).quiet()
        broker.stop()
    for again in range(2):
        with Broker(kinds=KINDS, data=tmp_path) as broker:
            client = lasting(broker, "client")
            release: Ack = client.expect(Ack)
            assert (release.kind, release.packet_id) == (f.PUBREL, message.packet_id)
            assert client.quiet()
            Mqtt(broker).publish("t", b"2", 1)
            new = client.get()
            assert (new.payload, new.packet_id != message.packet_id) == (b"2", True)
            if again:
                client.send(Ack(f.PUBCOMP, message.packet_id))
            assert client.quiet()
            broker.stop()
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        assert lasting(broker, "client").quiet()


@ENDS
@pytest.mark.parametrize("filters", [["t/#"], ["t/#", *(f"t/{number}" for number in range(120))]], ids=["one", "many"])
def test_what_was_begun_of_a_subscription_that_has_ended_is_completed(
    tmp_path: Path, how: str, filters: list[str]
) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "client")
        client.subscribe("other", *filters, qos=2)
        Mqtt(broker).publish("t/1", b"1", 2)
        Mqtt(broker).publish("t/1", b"2", 1)
        sent = [client.expect(Publish) for _ in range(2)]
        client.unsubscribe(*reversed(filters))
        Mqtt(broker).publish("t/1", b"3", 1)
        assert client.quiet()
        end(broker, how)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        client = lasting(broker, "client")
        again = [client.get() for _ in sent]
        assert [(one.packet_id, one.payload, one.dup) for one in again] == [
            (one.packet_id, one.payload, True) for one in sent
        ]
        assert client.quiet()


def test_history_goes_on_after_a_restart(tmp_path: Path) -> None:
    home = Home(tmp_path, kinds=KINDS)
    with home.broker() as broker:
        publish_all(broker, b"h", range(3_000))
        client = lasting(broker, "c")
        assert client.subscribe("new", qos=2) == [2]
        publish_all(broker, b"new", range(1))
        assert numbers(client, 1) == [0]
        client.send(Subscribe(2, [Topics(b"h", 1)], {f.USER: [("smb-replay", "all")]}))
        got: list[int] = []
        kept = False  # nothing is promised before the SUBACK, and messages may come before it
        while len(got) < 500 or not kept:
            packet = client.next()
            if isinstance(packet, Publish) and len(got) < 500:
                client.accept(packet)
                got.append(int(packet.payload))
            kept = kept or isinstance(packet, Results)
        assert got == list(range(500))
        home.wait_saved("SELECT 1 FROM sessions WHERE cursor BETWEEN 499 AND 2999", 1)
        kill(broker)
    with home.broker() as broker:
        client = lasting(broker, "c")
        seen: dict[bytes, list[int]] = {b"h": [], b"new": []}
        while not seen[b"h"] or seen[b"h"][-1] < 2_999:
            message = client.get()
            seen[message.topic].append(int(message.payload))
        assert seen[b"h"] == list(range(seen[b"h"][0], 3_000))
        assert 499 <= seen[b"h"][0] <= 500
        assert seen[b"new"] == [], "and nothing of the others comes twice"
