"""kill -9 of a broker under load, again and again, while a reader looks on.

What was acknowledged is there, once; offsets go up one by one; and no offset that a reader saw ever means another
message.
"""

import random
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from flow.house import BIN, Broker, Tcp, Udp, wait_for
from flow.lasting import ACK, LONG, Home, Reader, TypedReader, until
from flow.wires import PUBACK, publication, subscription
from smbroker.log.reader import LogReader
from smbroker.log.verify import verify

ROUNDS = 50 if LONG else 5
MOST = 1.0 if LONG else 0.5  # seconds of load before a kill
AHEAD = 32  # publishes that wait for their acknowledgement


class Publisher:
    """Publishes numbered payloads in a thread until the broker is gone; notes which of them were acknowledged."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.sent: list[bytes] = []
        self.acknowledged = 0
        self.name = name
        self.connect(broker)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with suppress(OSError, AssertionError):
            while True:
                while len(self.sent) - self.acknowledged < AHEAD:
                    payload = b"%b.%d" % (self.name.encode(), len(self.sent))
                    self.sent.append(payload)
                    self.publish(payload)
                self.take()

    def connect(self, broker: Broker) -> None:
        raise NotImplementedError

    def publish(self, payload: bytes) -> None:
        raise NotImplementedError

    def take(self) -> None:
        """Waits for an acknowledgement, and takes all that have come."""
        raise NotImplementedError

    def result(self) -> list[bytes]:
        """After the kill: those that were acknowledged. Acknowledgements come in the order of the publishes."""
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.sent[: self.acknowledged]


class PipePublisher(Publisher):
    def connect(self, broker: Broker) -> None:
        self.client = Udp(broker.ports["udp"])

    def publish(self, payload: bytes) -> None:
        self.client.send(b"P|kill/pipe|" + payload)

    def take(self) -> None:
        while True:  # the end of the broker is heard with the next send at the latest
            with suppress(TimeoutError):
                assert self.client.receive(0.2) == ACK
                self.acknowledged += 1
                return
            self.client.send(b"pkill/nudge;")


class PaddedPublisher(Publisher):
    def connect(self, broker: Broker) -> None:
        self.client = Tcp(broker.ports["padded"])

    def publish(self, payload: bytes) -> None:
        self.client.send(publication(b"kill/padded", payload))

    def take(self) -> None:
        data = self.client.sock.recv(64 * AHEAD)
        while data and len(data) % 64:
            data += self.client.sock.recv(64 - len(data) % 64)
        if not data:
            raise ConnectionError
        assert data == PUBACK * (len(data) // 64)
        self.acknowledged += len(data) // 64


class Witness:
    """Reads the log from a process that is not the broker, all the time, and remembers what it saw at which offset."""

    def __init__(self, directory: Path) -> None:
        self.seen: dict[int, bytes] = {}
        self.error: BaseException | None = None
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._directory.joinpath("mark").exists():
                self._stop.wait(0.01)
            reader = LogReader(self._directory)
            while not self._stop.wait(0.002):
                self._look(reader)
            self._look(reader)
        except BaseException as error:
            self.error = error

    def _look(self, reader: LogReader) -> None:
        for batch in reader.read(len(self.seen), columns=["offset", "payload"]):
            for offset, payload in zip(*(batch.column(name).to_pylist() for name in batch.schema.names), strict=True):
                assert offset == len(self.seen), f"{offset} follows {len(self.seen) - 1}"
                self.seen[offset] = payload

    def stop(self) -> dict[int, bytes]:
        self._stop.set()
        self._thread.join(30)
        if self.error:
            raise self.error
        return self.seen


def killed_while_starting(home: Home, seconds: float) -> None:
    listen = [word for kind, port in home.ports.items() for word in ("--listen", f"{kind}://127.0.0.1:{port}")]
    command = [BIN / "smbbroker", "--data", home.data, *listen]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(time.monotonic() + seconds)
        process.kill()


def test_nothing_acknowledged_is_lost_and_no_offset_changes_its_meaning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(9)
    home = Home(tmp_path, "[log]\nseal_rows = 5000\n")
    home.log.mkdir(parents=True)
    witness = Witness(home.log)
    acknowledged: set[bytes] = set()
    for number in range(ROUNDS):
        if chance.random() < 0.3:
            killed_while_starting(home, chance.uniform(0.0, 0.6))
        broker = home.broker()
        publishers: list[Publisher] = [PipePublisher(broker, f"{number}.{name}") for name in "ab"]
        publishers += [PaddedPublisher(broker, f"{number}.{name}") for name in "cd"]
        reader = Reader(broker, b"kill/pipe", b"kill/padded")
        wait_for(lambda publishers=publishers: all(each.acknowledged for each in publishers), "acknowledgements")
        until(time.monotonic() + chance.uniform(0.0, MOST))
        broker.kill()
        for publisher in publishers:
            acknowledged.update(publisher.result())
        wait_for(lambda reader=reader: reader.error, "the end of the connection")
        check(home, witness, acknowledged)
        check_delivered(home, reader)
    with home.broker() as broker:
        assert not broker.err.has("lost"), broker.err.all
    kept = check(home, witness, acknowledged)
    assert witness.stop().items() <= kept.items()
    assert list(verify(home.log)) == []
    with capsys.disabled():
        print(f"\n{ROUNDS} kills, {len(acknowledged)} acknowledged, {len(kept)} kept, {len(witness.seen)} witnessed")


def check(home: Home, witness: Witness, acknowledged: set[bytes]) -> dict[int, bytes]:
    if witness.error:
        raise witness.error
    rows = home.rows("offset", "payload")
    kept = dict(rows)
    assert list(kept) == list(range(len(rows))), "offsets go up one by one"
    numbered = [payload for payload in kept.values() if payload]
    assert len(numbered) == len(set(numbered)), "a message is there twice"
    missing = acknowledged - set(numbered)
    assert not missing, f"{len(missing)} acknowledged messages are missing: {sorted(missing)[:5]}"
    for offset, payload in list(witness.seen.items()):
        if offset in kept:
            assert kept[offset] == payload, f"offset {offset} meant another message"
    return kept


def check_delivered(home: Home, reader: Reader) -> None:
    """A subscriber got the beginning of what the log holds of its titles, in that order: it is fed from the log."""
    rows = home.rows("topic", "payload")
    for title, got in reader.got.items():
        assert got == [payload for topic, payload in rows if topic == title.decode()][: len(got)]


def test_a_kill_takes_nothing_from_a_typed_client_that_keeps(tmp_path: Path) -> None:
    """Connected all the time but for the kills: none is missing; after a kill some may come twice."""
    chance = random.Random(4)
    home = Home(tmp_path, "[log]\nseal_rows = 5000\n")
    got: list[bytes] = []
    acknowledged: list[bytes] = []
    for number in range(ROUNDS):
        broker = home.broker()
        client = TypedReader(broker, b"C1", *([subscription(b"kill/pipe", 1)] if number == 0 else []))
        home.wait_saved("SELECT * FROM subscriptions WHERE keep = 1", 1)
        publisher = PipePublisher(broker, str(number))
        wait_for(lambda publisher=publisher: publisher.acknowledged, "an acknowledgement")
        until(time.monotonic() + chance.uniform(0.0, MOST))
        broker.kill()
        wait_for(lambda client=client: client.error, "the end of the connection")
        got += client.contents
        acknowledged += publisher.result()
    with home.broker() as broker:
        client = TypedReader(broker, b"C1")
        last = Udp(broker.ports["udp"])
        assert last.ask(b"P|kill/pipe|last") == ACK
        wait_for(lambda: client.contents[-1:] == [b"last"], "the last")
        got += client.contents
    kept = [payload for topic, payload in home.rows("topic", "payload") if topic == "kill/pipe"]
    assert set(acknowledged) <= set(kept)
    assert set(got) == set(kept), f"{len(set(kept) - set(got))} are missing"
    first_time = list(dict.fromkeys(got))
    assert first_time == kept, "in order, but for what came twice"
