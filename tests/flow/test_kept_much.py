"""Much that is kept: large backlogs, clients that read slowly or vanish, and what retention removes."""

import os
import socket
import struct
from pathlib import Path

import pytest

from flow.house import wait_for
from flow.keeping import KEPT, subscribed
from flow.lasting import Home, Reader, TypedReader, numbered, send_all
from flow.peers import counts
from flow.wires import (
    FRAME,
    SmallTcp,
    identity,
    subscription,
)
from smbroker.log.reader import LogReader


def test_a_client_that_does_not_read_for_long_gets_everything_in_the_end(tmp_path: Path) -> None:
    home = Home(tmp_path)
    payloads = numbered(range(50_000))
    with home.broker() as broker:
        lazy = SmallTcp(broker.ports["typed"])
        lazy.send(identity(b"lazy") + subscription(b"t", 1))
        home.wait_saved(KEPT, 1)
        other = TypedReader(broker, b"other", subscription(b"t", 1))
        home.wait_saved(KEPT, 2)
        before = broker.memory()
        send_all(broker, b"t", payloads)
        assert other.wait(len(payloads)) == payloads, "nobody else waits for it"
        assert broker.memory() - before < 40 << 20
        stream = bytearray()
        while len(stream) < len(payloads) * FRAME:
            piece = lazy.sock.recv(1 << 18)
            assert piece, "closed"
            stream += piece
        contents = [bytes(stream[at + 51 : at + 1551]).rstrip(b"\0") for at in range(0, len(stream), FRAME)]
        assert contents == payloads
        assert broker.memory() - before < 40 << 20
        assert not broker.err.has("disconnected"), broker.err.all


@pytest.mark.parametrize("count", [15_000, 40_000], ids=["in memory", "on disk"])
def test_a_large_backlog_comes_to_a_client_that_reads_slowly(tmp_path: Path, count: int) -> None:
    """As frames it is more than may wait for a client."""
    home = Home(tmp_path)
    payloads = numbered(range(count))
    with home.broker() as broker:
        subscribed(home, broker, b"t").leave()
        send_all(broker, b"t", payloads)
        before = broker.memory()
        back = TypedReader(broker, b"C1", reading=False)
        publisher = broker.udp()
        assert publisher.ask(b"P|t|last") == b"Hello Publisher!"
        back.go_on()
        assert back.wait(count + 1) == [*payloads, b"last"]
        assert not broker.err.has("disconnected"), broker.err.all
        assert broker.memory() - before < 40 << 20


def test_leaving_and_returning_in_the_middle_of_it(tmp_path: Path) -> None:
    """Each time the client takes what was sent, then comes back for the rest, at once."""
    home = Home(tmp_path, "[log]\nseal_rows = 10000\n")
    payloads = numbered(range(40_000))
    with home.broker() as broker:
        subscribed(home, broker, b"t").leave()
        send_all(broker, b"t", payloads)
        got: list[bytes] = []
        while len(got) < len(payloads):
            client = TypedReader(broker, b"C1")
            wait_for(lambda client=client, got=got: client.got or len(got) == len(payloads), "something")
            got += client.leave()
        assert got == payloads


def test_returning_at_once_after_vanishing_loses_nothing_that_was_not_sent(tmp_path: Path) -> None:
    """Connections that end while history is being read for them, as fast as can be."""
    home = Home(tmp_path, "[log]\nrecent_bytes = 1000000\n")  # so that history is read
    payloads = numbered(range(30_000))
    with home.broker() as broker:
        subscribed(home, broker, b"t").leave()
        send_all(broker, b"t", payloads)
        for _ in range(30):  # these never read, and their system takes almost nothing
            client = SmallTcp(broker.ports["typed"])
            client.send(identity(b"C1"))
            line = f"New client C1 connected from 127.0.0.1:{client.address[1]}."
            broker.out.wait(line)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sock.close()
            wait_for(lambda: broker.out.all[-1] == "Client C1 disconnected.", "the end of the connection")
        back = TypedReader(broker, b"C1")
        wait_for(lambda: back.got, "something")
        first = int(back.contents[0])
        assert first < 2_000, "more than their systems took is gone"
        assert back.wait(len(payloads) - first) == payloads[first:]


def test_what_retention_removed_is_stepped_over_and_counted(tmp_path: Path) -> None:
    home = Home(tmp_path, "[log]\nseal_rows = 1000\nretain_bytes = 1000000\nrecent_bytes = 1000000\n")
    with home.broker() as broker:
        subscribed(home, broker, b"t").leave()
        payloads = [b"%d %b" % (number, os.urandom(500).hex().encode()) for number in range(6_000)]
        send_all(broker, b"t", payloads[:3_000])
        wait_for(home.sealed, "a sealed segment")
        send_all(broker, b"t", payloads[3_000:])
        wait_for(lambda: LogReader(home.log).first_offset, "retention")
        back = TypedReader(broker, b"C1")
        wait_for(lambda: back.contents[-1:] == payloads[-1:], "the last")
        history = Reader(broker, b"t")
        wait_for(lambda: history.got[b"t"][-1:] == payloads[-1:], "the last")
        first = LogReader(home.log).first_offset  # it may go on removing while they read
        for got in (back.contents, history.got[b"t"]):
            numbers = [int(payload.split()[0]) for payload in got]
            assert numbers == sorted(set(numbers))
            assert got[first - 6_000 :] == payloads[first:], "all that is still there"
            assert len(got) < 6_000
        assert counts(broker)["cursor_behind"] >= 1
