"""Notes of QoS 2 in the log: what is of an earlier session of the client, or from before it went back to history, does
not count after a restart; what the state has not heard of yet does.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flow.ends import ENDS, KEEP, end, kill, lasting
from flow.house import Broker
from flow.lasting import Home
from flow.mqtt import Mqtt
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Disconnect, Publish, Results, Subscribe, Topics

ONE_BY_ONE: f.Properties = {**KEEP, f.RECEIVE_MAXIMUM: 1}
PAYLOADS = [b"1", b"2", b"3"]


def received_all(home: Home, broker: Broker) -> Mqtt:
    """A client that has completed the messages at the offsets 0 to 2; the notes of it are after the last."""
    publisher = Mqtt(broker)
    client = Mqtt(broker, "c", version=5, clean=False, properties=ONE_BY_ONE)
    client.subscribe("t", qos=2)
    for payload in PAYLOADS:
        publisher.publish("t", payload, qos=2)
        assert client.get().payload == payload
    home.wait_saved("SELECT 1 FROM sessions WHERE cursor = 3", 1)
    home.wait_saved("SELECT 1 FROM facts WHERE name = 'mqtt' AND value = 3", 1)
    return client


def go_back(home: Home, client: Mqtt) -> int:
    """Subscribes to all of the history; the identifier of the first message, which is not acknowledged."""
    client.send(Subscribe(9, [Topics(b"t", 2)], {f.USER: [("smb-replay", "all")]}))
    answers = [client.next(), client.next()]
    assert any(isinstance(answer, Results) for answer in answers)
    (message,) = (answer for answer in answers if isinstance(answer, Publish))
    assert message.payload == b"1"
    home.wait_saved("SELECT 1 FROM sessions WHERE cursor = 0", 1)
    return message.packet_id


def payloads(client: Mqtt, count: int) -> list[bytes]:
    return [client.get().payload for _ in range(count)]


@ENDS
def test_what_was_received_before_going_back_to_history_comes_again(tmp_path: Path, how: str) -> None:
    home = Home(tmp_path, kinds=("mqtt",))
    with home.broker() as broker:
        client = received_all(home, broker)
        go_back(home, client)
        client.drop()
        end(broker, how)
    with home.broker() as broker:
        client = Mqtt(broker, "c", version=5, clean=False, properties=ONE_BY_ONE)
        assert client.connack.present
        assert payloads(client, 3) == PAYLOADS


def test_what_an_earlier_session_had_received_comes_to_the_next_one(tmp_path: Path) -> None:
    home = Home(tmp_path, kinds=("mqtt",))
    with home.broker() as broker:
        received_all(home, broker).disconnect()
        client = Mqtt(broker, "c", version=5, clean=True, properties=ONE_BY_ONE)
        go_back(home, client)
        kill(broker)
    with home.broker() as broker:
        client = Mqtt(broker, "c", version=5, clean=False, properties=ONE_BY_ONE)
        assert client.connack.present
        assert payloads(client, 3) == PAYLOADS


def test_what_was_received_of_the_history_does_not_come_again(tmp_path: Path) -> None:
    home = Home(tmp_path, kinds=("mqtt",))
    with home.broker() as broker:
        client = received_all(home, broker)
        number = go_back(home, client)
        client.send(Ack(f.PUBREC, number))
        assert client.expect(Ack) == Ack(f.PUBREL, number)
        kill(broker)
    with home.broker() as broker:
        client = Mqtt(broker, "c", version=5, clean=False, properties=ONE_BY_ONE)
        assert client.connack.present
        assert client.expect(Ack) == Ack(f.PUBREL, number)
        client.send(Ack(f.PUBCOMP, number))
        assert payloads(client, 2) == PAYLOADS[1:]


@pytest.mark.parametrize("again", [False, True], ids=["while it is there", "after the next one has come"])
def test_what_a_session_has_released_is_released_though_it_lasts_no_more(tmp_path: Path, again: bool) -> None:
    home = Home(tmp_path, kinds=("mqtt",))
    with home.broker() as broker:
        client = lasting(broker, "c")
        client.send(Publish(b"t", b"1", 2, packet_id=5))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
        client.drop()
        client = Mqtt(broker, "c", version=5, clean=False, properties={f.SESSION_EXPIRY: 0})
        assert client.connack.present
        client.send(Ack(f.PUBREL, 5))
        assert client.expect(Ack) == Ack(f.PUBCOMP, 5)
        if again:
            client.disconnect()
            lasting(broker, "c")
        kill(broker)
    with home.broker() as broker:
        client = lasting(broker, "c")
        client.send(Publish(b"t", b"2", 2, packet_id=5))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
    assert home.rows("payload") == [(b"1",), (b"2",)]


@pytest.mark.parametrize("lasting_too", [False, True])
def test_what_an_ended_session_had_is_not_of_the_next_one_though_the_state_is_late(
    tmp_path: Path, lasting_too: bool
) -> None:
    """It cannot be written: that the session has ended is in the log alone."""
    home = Home(tmp_path, kinds=("mqtt",))
    with home.broker() as broker:
        client = lasting(broker, "c")
        client.send(Publish(b"t", b"1", 2, packet_id=5))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
        home.wait_saved("SELECT 1 FROM sessions WHERE properties LIKE '%\"inbound\": [5]%'", 1)
        with closing(sqlite3.connect(home.data / "state.db", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            client.send(Disconnect(0, {f.SESSION_EXPIRY: 0}))
            client.drop()
            client = Mqtt(broker, "c", version=5, clean=True, properties=KEEP if lasting_too else {})
            client.send(Publish(b"t", b"2", 2, packet_id=5))
            assert client.expect(Ack) == Ack(f.PUBREC, 5)
            client.send(Ack(f.PUBREL, 5))
            assert client.expect(Ack) == Ack(f.PUBCOMP, 5)
            client.send(Publish(b"t", b"3", 2, packet_id=6))
            assert client.expect(Ack) == Ack(f.PUBREC, 6)
            kill(broker)
    with home.broker() as broker:
        client = lasting(broker, "c")
        client.send(Publish(b"t", b"4", 2, packet_id=5))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
        if lasting_too:
            client.send(Publish(b"t", b"3", 2, packet_id=6, dup=True))
            assert client.expect(Ack) == Ack(f.PUBREC, 6)
    assert home.rows("payload") == [(b"1",), (b"2",), (b"3",), (b"4",)]
