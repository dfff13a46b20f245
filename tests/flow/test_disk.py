"""A disk that fills up, is freed again, is damaged or taken: a real small tmpfs under a real broker."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import BIN, LIMIT, Broker, wait_for
from flow.lasting import ACK, Home, Reader, TypedReader, killed, numbered, send_all
from flow.mqtt import Mqtt
from flow.peers import Peer, counts, settled
from flow.test_pairs import Subscriber
from flow.wires import datagram, delivery, frame, padded_publish, publication, subscription
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Disconnect, Publish, Will
from smbroker.log.log import Log
from smbroker.log.state import State
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin

REFUSING = "the log cannot be appended to: No space left on device"
AGAIN = "the log takes messages again"
LARGE = 20_000  # bytes of a payload that finds no room in what is left of a page
DIALECTS = ("soh", "pipe", "semicolon", "padded", "typed")
FRAMES = {
    "soh": lambda topic, payload, _: b"\x01" + topic + b"\x02" + payload,
    "pipe": lambda topic, payload, _: b"TOPIC: " + topic + b" - MESSAGE: " + payload,
    "semicolon": lambda topic, payload, _: topic + b";" + payload,
    "padded": lambda topic, payload, _: delivery(topic, payload),
    "typed": frame,
}


class Disk:
    """A tmpfs, and a file that fills it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """To the last byte."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    pass

    def free(self) -> None:
        self._ballast.unlink()

    def grow(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    size = getattr(request, "param", "8m")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "smb-test", folder], capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def refusing(broker: Broker, disk: Disk) -> None:
    """Fills the disk and has the broker find out. The message that does it is relayed, but not acknowledged."""
    disk.fill()
    assert broker.udp().ask(b"P|find/out|" + b"x" * LARGE).startswith(b"ERROR: ")
    disk.fill()  # what was cut off from the log left some room
    broker.err.wait(REFUSING)


def recovered(broker: Broker) -> None:
    wait_for(lambda: broker.err.has(AGAIN), AGAIN)


def test_on_a_full_disk_it_keeps_relaying_refuses_and_recovers_by_itself(tmp_path: Path, disk: Disk) -> None:
    home = Home(tmp_path, data=disk.folder / "data")
    with home.broker() as broker:
        send_all(broker, b"full/p", numbered(range(100)))
        peers = {dialect: Subscriber(broker, dialect, b"full/s", name=dialect[:4]) for dialect in DIALECTS}
        quiet = Subscriber(broker, "semicolon", b"full/p")
        refusing(broker, disk)

        publisher = broker.udp()
        reply = publisher.ask(b"P|full/p|refused " + b"x" * LARGE)
        assert reply.startswith(b"ERROR: "), reply
        assert b"No space left on device" in reply
        assert publisher.ask(b"P|full/p|refused") == reply, "also what would find room"
        stream = broker.tcp("padded")
        stream.send(publication(b"full/p", b"refused"))
        assert stream.closed(), "without a PubAck"

        for number in range(20):
            source = broker.udp()
            source.send(b"pfull/s;relayed %d" % number)
            for dialect, peer in peers.items():
                expected = FRAMES[dialect](b"full/s", b"relayed %d" % number, source.address)
                assert peer.take(len(expected)) == expected
        broker.udp("typed").send(datagram(b"full/s", b"relayed typed"))
        assert peers["pipe"].take(0) == b"TOPIC: full/s - MESSAGE: relayed typed"
        broker.udp().send(b"\x01full/s\x02relayed soh")
        assert peers["pipe"].take(0) == b"TOPIC: full/s - MESSAGE: relayed soh"
        broker.udp().send(b"pfull/p;first")
        assert quiet.take(0) == b"full/p;first", "what was refused was not relayed"

        disk.free()
        recovered(broker)
        send_all(broker, b"full/p", numbered(range(100, 200)))
        padded_publish(broker.tcp("padded"), b"full/p", b"by padded")
        expected_history = [*numbered(range(200)), b"by padded"]
        assert Reader(broker, b"full/p").wait(201)[b"full/p"] == expected_history
        assert counts(broker)["not_logged"] == 24, "20 semicolon, typed, soh, first, and the one that found out"
    payloads = [payload for (payload,) in home.rows("payload")]
    assert payloads == expected_history
    with home.broker() as broker:
        assert Reader(broker, b"full/p").wait(201)[b"full/p"] == expected_history
        assert not broker.err.has("lost"), broker.err.all


def test_kept_subscribers_that_are_there_get_what_could_not_be_logged(tmp_path: Path, disk: Disk) -> None:
    home = Home(tmp_path, data=disk.folder / "data")
    with home.broker() as broker:
        kept = TypedReader(broker, b"C1", subscription(b"t", 1))
        home.wait_saved("SELECT * FROM subscriptions", 1)
        send_all(broker, b"t", [b"0"])
        kept.wait(1)
        refusing(broker, disk)
        for number in range(1, 5):
            broker.udp().send(b"pt;%d" % number)
            settled(broker)
        assert kept.wait(5) == [b"0", b"1", b"2", b"3", b"4"]
        disk.free()
        recovered(broker)
        send_all(broker, b"t", [b"5"])
        kept.wait(6)
        kept.leave()
        back = TypedReader(broker, b"C1")
        send_all(broker, b"t", [b"6"])
        assert back.wait(1) == [b"6"], "nothing comes again"


@pytest.mark.parametrize("disk", ["4m"], indirect=True)
def test_a_log_that_fills_its_disk_keeps_what_it_acknowledged(tmp_path: Path, disk: Disk) -> None:
    """Several publishers, each until it is refused; then the disk grows and they go on."""
    home = Home(tmp_path, "[log]\nseal_rows = 1000\n", data=disk.folder / "data")
    acknowledged: set[bytes] = set()
    refused: set[bytes] = set()

    def publish(broker: Broker, name: str, refusals: int) -> None:
        publisher = broker.udp()
        number = 0
        while refusals:
            payload = numbered([number], name.encode(), 900)[0]
            reply = publisher.ask(b"P|fill|" + payload)
            (acknowledged if reply == ACK else refused).add(payload)
            refusals -= reply != ACK
            number += 1

    with killed(home.broker()) as broker:
        threads = [threading.Thread(target=publish, args=(broker, f"a{n}", 60), daemon=True) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        broker.err.wait(REFUSING)
        disk.grow("64m")
        wait_for(lambda: broker.udp().ask(b"P|fill|probe") == ACK, "an acknowledgement")
        send_all(broker, b"fill", numbered(range(500), b"b"))
        acknowledged |= set(numbered(range(500), b"b"))
    with home.broker() as broker:
        got = Reader(broker, b"fill")
        wait_for(lambda: got.count and acknowledged <= set(got.got[b"fill"]), "what was acknowledged")
        kept = [payload for (payload,) in home.rows("payload")]
        assert len(kept) - kept.count(b"probe") == len(acknowledged), "and nothing else"
        assert not refused & set(kept), "what was refused does not come back"
        assert got.got[b"fill"] == kept


def test_sessions_are_saved_once_the_disk_lets_them(tmp_path: Path, disk: Disk) -> None:
    home = Home(tmp_path, data=disk.folder / "data")
    broker = home.broker()
    refusing(broker, disk)
    peers = [Peer(broker) for _ in range(50)]
    for peer in peers:
        for number in range(20):
            peer.send(b"S|saved/%d/%b" % (number, b"x" * 100))
            assert peer.receive() == b"Hello Subscriber!"
    broker.err.wait("sessions cannot be saved")
    disk.free()
    broker.err.wait("sessions are saved again")
    home.wait_saved("SELECT * FROM subscriptions", 1_000)
    broker.kill()
    with home.broker() as broker:
        broker.udp().send(b"psaved/19/%b;x" % (b"x" * 100))
        for peer in peers:
            assert peer.receive() == b"TOPIC: saved/19/%b - MESSAGE: x" % (b"x" * 100)


def test_it_stops_in_order_while_the_disk_is_full(tmp_path: Path, disk: Disk) -> None:
    home = Home(tmp_path, data=disk.folder / "data")
    with home.broker() as broker:
        send_all(broker, b"t", numbered(range(10)))
        refusing(broker, disk)
        assert broker.stop(signal.SIGTERM) == 0
        assert not broker.err.has("Traceback"), broker.err.all
    disk.fill()  # what it closed left some room
    code, said = start_in_vain(home)
    assert code == 1, "it cannot start on a full disk"
    assert any("No space left on device" in line for line in said), said
    assert not any("Traceback" in line for line in said)
    disk.free()
    with home.broker() as broker:
        assert Reader(broker, b"t").wait(10)[b"t"] == numbered(range(10))


def start_in_vain(home: Home) -> tuple[int, list[str]]:
    command = [BIN / "smbbroker", "--data", home.data, "--listen", "udp://127.0.0.1:0"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
    return done.returncode, done.stderr.decode().splitlines()


# --- one broker at a time ---


def test_a_second_broker_on_the_same_data_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with killed(home.broker()) as broker:
        send_all(broker, b"t", [b"1"])
        code, said = start_in_vain(home)
        assert code == 1
        assert len(said) == 1, said
        assert str(broker.process.pid) in said[0]
        assert str(home.data) in said[0]
        send_all(broker, b"t", [b"2"])
    with home.broker() as broker:
        assert Reader(broker, b"t").wait(2)[b"t"] == [b"1", b"2"], "whoever had it is gone"


# --- damage ---


def cut(tail: Path) -> None:
    os.truncate(tail, tail.stat().st_size - 10)


def flip(tail: Path) -> None:
    data = bytearray(tail.read_bytes())
    data[-300] ^= 1
    tail.write_bytes(data)


@pytest.mark.parametrize("how", [cut, flip])
def test_a_damaged_tail_loses_its_end_and_the_broker_says_so(tmp_path: Path, how: object) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        for payload in numbered(range(10)):
            send_all(broker, b"t", [payload])
    assert callable(how)
    how(home.tails()[-1])
    with home.broker() as broker:
        assert broker.err.wait("offsets 9 to 10 are lost, appending goes on at 10")
        send_all(broker, b"t", [b"new"])
        assert Reader(broker, b"t").wait(10)[b"t"] == [*numbered(range(9)), b"new"]
    assert home.rows("offset")[-1] == (10,), "an offset is never used again"
    with home.broker() as broker:
        assert Reader(broker, b"t").wait(10)[b"t"] == [*numbered(range(9)), b"new"]
        assert not broker.err.has("lost"), "it is said once"


def test_garbage_after_the_tail_is_dropped_and_the_broker_says_so(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        send_all(broker, b"t", numbered(range(10)))
    with home.tails()[-1].open("ab") as file:
        file.write(b"garbage" * 100)
    with home.broker() as broker:
        assert broker.err.wait("dropped 700 bytes")
        send_all(broker, b"t", [b"new"])
        assert Reader(broker, b"t").wait(11)[b"t"] == [*numbered(range(10)), b"new"]


def test_a_kept_client_steps_over_what_is_lost(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.broker() as broker:
        TypedReader(broker, b"C1", subscription(b"t", 1))
        home.wait_saved("SELECT * FROM subscriptions", 1)
    with home.broker() as broker:
        for payload in numbered(range(10)):
            send_all(broker, b"t", [payload])
    cut(home.tails()[-1])
    with home.broker() as broker:
        client = TypedReader(broker, b"C1")
        client.wait(9)
        send_all(broker, b"t", [b"new"])
        assert client.wait(10) == [*numbered(range(9)), b"new"]
        client.leave()
        back = TypedReader(broker, b"C1")
        send_all(broker, b"t", [b"last"])
        assert back.wait(1) == [b"last"]


def test_mqtt_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    """MQTT 5 is told, older versions are closed without an acknowledgement; QoS 0 is relayed; then all is as before."""
    home = Home(tmp_path, data=disk.folder / "data", kinds=("udp", "mqtt"))
    with home.broker() as broker:
        plain, kept = Mqtt(broker, version=5), Mqtt(broker, "kept", version=5)
        plain.subscribe("full/#")
        kept.subscribe("full/#", qos=2)
        publisher = Mqtt(broker, "publisher", version=5)
        publisher.publish("full/a", b"before", 2)
        refusing(broker, disk)

        for qos in (1, 2):
            ack = publisher.publish("full/a", b"refused", qos)
            assert ack
            assert ack.reason == 0x83
            assert "No space left on device" in ack.properties[f.REASON_STRING]
            old = Mqtt(broker)
            old.send(Publish(b"full/a", b"refused", qos, packet_id=1))
            assert old.closed()
        for version in (4, 5):
            Mqtt(broker, version=version).publish("full/a", b"relayed %d" % version)
        wanted = [b"before", b"relayed 4", b"relayed 5"]
        assert [plain.get().payload for _ in wanted] == wanted
        assert [kept.get().payload for _ in wanted] == wanted

        disk.free()
        recovered(broker)
        for qos in (1, 2):
            assert publisher.publish("full/a", b"again", qos) == Ack(f.PUBACK if qos == 1 else f.PUBREC, 3 + qos)
            assert Mqtt(broker).publish("full/a", b"again", qos)
        assert [kept.get().payload for _ in range(4)] == [b"again"] * 4
        assert kept.quiet()
    topics = [payload for (payload,) in home.rows("payload")]
    assert topics == [b"before", *[b"again"] * 4]


@pytest.mark.parametrize(("version", "stays"), [(4, True), (5, True), (5, False)])
def test_qos_2_that_the_disk_refused_is_taken_when_it_comes_again(
    tmp_path: Path, disk: Disk, version: int, stays: bool
) -> None:
    """Refused after it was routed, whether its client is still there or has said goodbye."""
    home = Home(tmp_path, data=disk.folder / "data", kinds=("udp", "mqtt"))
    keep: f.Properties = {f.SESSION_EXPIRY: 1_000} if version == 5 else {}
    packet = Publish(b"t", b"x" * LARGE, 2, packet_id=5)
    with killed(home.broker()) as broker:
        client = Mqtt(broker, "c", version=version, clean=False, properties=keep)
        disk.fill()
        client.tcp.send(packet.encode(version) + (b"" if stays else Disconnect().encode(version)))
        if version == 5:
            assert client.expect(Ack).reason == 0x83
        if version == 5 and stays:
            client.disconnect()
        assert client.closed()
        broker.err.wait(REFUSING)
        disk.free()
        recovered(broker)
        client = Mqtt(broker, "c", version=version, clean=False, properties=keep)
        client.send(Publish(b"t", packet.payload, 2, packet_id=5, dup=True))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
    assert home.rows("payload") == [(packet.payload,)]


def test_who_is_ended_because_the_disk_refused_has_its_will_published(tmp_path: Path, disk: Disk) -> None:
    home = Home(tmp_path, data=disk.folder / "data", kinds=("udp", "mqtt"))
    with home.broker() as broker:
        watcher = Mqtt(broker)
        watcher.subscribe("gone")
        client = Mqtt(broker, "c", will=Will(b"gone", b"by will"))
        disk.fill()
        client.send(Publish(b"t", b"x" * LARGE, 1, packet_id=1))
        assert client.closed(), "without a PUBACK"
        assert watcher.get().payload == b"by will"


def test_what_was_refused_does_not_make_room_for_more_under_way(tmp_path: Path, disk: Disk) -> None:
    settings = "[mqtt]\nreceive_maximum = 10\n"
    home = Home(tmp_path, settings, data=disk.folder / "data", kinds=("udp", "mqtt"))
    with home.broker() as broker:
        client = Mqtt(broker, version=5)
        refusing(broker, disk)
        for _ in range(20):
            ack = client.publish("t", b"refused", 1, properties={f.USER: [("k", "v")]})
            assert ack
            assert ack.reason == 0x83
        disk.free()
        recovered(broker)
        client.tcp.send(b"".join(Publish(b"t", b"x", 1, packet_id=at).encode(5) for at in range(100, 111)))
        assert client.ended(0x93)


def test_qos_2_that_is_on_disk_is_acknowledged_again_while_the_disk_refuses(tmp_path: Path, disk: Disk) -> None:
    """A refusal would set the identifier free, and the next message that has it would count as this one."""
    home = Home(tmp_path, data=disk.folder / "data", kinds=("udp", "mqtt"))
    keep: f.Properties = {f.SESSION_EXPIRY: 1_000}
    with home.broker() as broker:
        client = Mqtt(broker, "c", version=5, clean=False, properties=keep)
        client.send(Publish(b"t", b"1", 2, packet_id=5))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
        client.drop()
        refusing(broker, disk)
        client = Mqtt(broker, "c", version=5, clean=False, properties=keep)
        client.send(Publish(b"t", b"1", 2, packet_id=5, dup=True))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
        disk.free()
        recovered(broker)


def test_a_damaged_log_from_which_retained_messages_are_read_does_not_keep_the_broker_from_starting(
    tmp_path: Path,
) -> None:
    home, publisher = Home(tmp_path, kinds=("mqtt",)), Origin(Dialect.MQTT)
    log = Log.open(home.log)
    for topic in (b"a", b"b", b"c"):
        log.append([Columns(1, [topic], [b"x" * 100], [Kind.BYTES], [publisher], {0: Extra(0, True)})])
        log.rotate()
    log.close()
    state = State(home.log.parent / "state.db")
    state.save_fact("mqtt", 0)  # as far as it knows of the log
    assert state.flush(LIMIT)
    state.close()
    damaged = home.log / f"{1:020}.arrow"
    raw = damaged.read_bytes()
    damaged.write_bytes(raw.replace(b"x" * 100, b"x" * 99 + b"y"))
    with home.broker() as broker:
        broker.err.wait(f"retained messages: {damaged.name}: at byte")
        client = Mqtt(broker)
        client.subscribe("#")
        assert [client.get().topic for _ in range(2)] == [b"a", b"c"]


NO_NOTES = """
import errno, os, sys
if "smbbroker" in "".join(sys.orig_argv):
    from smbroker.log import tail
    def read_notes(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    tail.read_notes = read_notes
"""


def test_a_broker_that_cannot_read_what_has_come_with_qos_2_does_not_start_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, keep = Home(tmp_path, kinds=("mqtt",)), {f.SESSION_EXPIRY: 60}
    with killed(home.broker()) as broker:
        client = Mqtt(broker, "c", version=5, clean=False, properties=keep)
        client.send(Publish(b"t", b"1", 2, packet_id=5))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
    (tmp_path / "sitecustomize.py").write_text(NO_NOTES)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        command = [BIN / "smbbroker", "--data", home.data, "--listen", "mqtt://127.0.0.1:0"]
        start = subprocess.run(command, capture_output=True, timeout=LIMIT)
    assert start.returncode == 1
    assert b"arrow cannot be read: Input/output error" in start.stderr
    with home.broker() as broker:
        client = Mqtt(broker, "c", version=5, clean=False, properties=keep)
        client.send(Publish(b"t", b"1", 2, packet_id=5, dup=True))
        assert client.expect(Ack) == Ack(f.PUBREC, 5)
    assert home.rows("payload") == [(b"1",)], "once"
