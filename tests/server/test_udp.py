"""The UDP listener by hand: no loop runs, so each read, flush and error happens when the test says so."""

import select
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import uvloop

from smbroker.core.rights import Rights
from smbroker.core.sessions import Limits
from smbroker.model.filter import exact
from smbroker.model.message import Dialect
from smbroker.model.rules import rules
from smbroker.server import listeners, udp
from smbroker.server.config import Config, UdpConfig
from smbroker.server.console import Console
from smbroker.server.datagrams import open_socket
from smbroker.server.turn import Turn
from smbroker.server.udp import UdpListener


class House:
    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.config = Config(quiet=True)
        self.turn = Turn(self.loop, self.config, Console(self.loop.time))
        self.sock = open_socket(socket.AF_INET, "127.0.0.1", 0, 1 << 20)
        decoders = listeners.decoders("udp", self.config.semicolon)
        self.listener = UdpListener(self.turn, self.config, "udp", self.sock, decoders)

    def peer(self, port: int = 0) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.3", port))
        sock.connect(self.sock.getsockname())
        sock.setblocking(False)
        return sock

    def turn_once(self) -> None:
        """One pass: read what is there, then flush."""
        self.listener._ready()
        self.turn.end()

    def fail(self, times: int) -> None:
        """So many sends come back, and the broker has noted it."""
        publisher = self.peer()
        for _ in range(times):
            publisher.send(b"pa;m")
            self.turn_once()
        self.turn_once()
        publisher.close()

    def subscribed(self) -> int:
        return self.turn.sessions.by_dialect[Dialect.SEMICOLON]

    def watched(self) -> list[tuple[int, int]]:
        """What the event loop would be woken for."""
        return self.listener._epoll.poll(0)

    def close(self) -> None:
        self.listener.stop_reading()
        self.listener.close()
        self.loop.close()


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


def test_a_word_resets_the_count_however_soon_it_comes(house: House) -> None:
    peer = house.peer()
    port = peer.getsockname()[1]
    peer.send(b"sa")
    house.turn_once()
    for _ in range(3):
        peer.close()
        house.fail(4)
        assert house.subscribed() == 1
        peer = house.peer(port)
        peer.send(b"pother;m")
        house.turn_once()
    peer.close()
    house.fail(5)
    assert house.subscribed() == 0


def test_what_came_back_before_a_subscribe_does_not_end_it(house: House) -> None:
    peer, publisher = house.peer(), house.peer()
    port = peer.getsockname()[1]
    peer.send(b"sa")
    house.turn_once()
    peer.close()
    for length in range(5):
        publisher.send(b"pa;" + b"x" * length)
    house.turn_once()
    peer = house.peer(port)
    peer.send(b"sa")
    publisher.send(b"pa;again")
    house.turn_once()
    assert house.subscribed() == 1
    assert peer.recv(100) == b"a;again"
    peer.close()
    publisher.close()


class SlowLog:
    """A log that is behind until it is told otherwise."""

    def __init__(self) -> None:
        self.behind = True
        self.failed = None
        self.waiting: list[Callable[[], None]] = []

    def when_caught_up(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def submit(self, *_: object) -> None: ...

    def gap(self) -> None: ...

    def catch_up(self) -> None:
        self.behind = False
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


def test_while_the_log_is_behind_nothing_is_read_and_nothing_spins(house: House) -> None:
    peer, publisher = house.peer(), house.peer()
    peer.send(b"sa")
    house.turn_once()
    peer.close()
    log = SlowLog()
    house.turn.commits = log  # type: ignore[assignment]
    log.behind = False
    publisher.send(b"pa;comes back")
    house.turn_once()
    log.behind = True
    publisher.send(b"sb")
    for _ in range(3):
        if house.watched():
            house.turn_once()
    assert house.watched() == [], "neither what waits to be read nor what came back wakes us"
    assert len(log.waiting) == 1
    assert house.subscribed() == 1, "sb was not read"
    log.catch_up()
    assert house.watched()
    house.turn_once()
    assert house.subscribed() == 2
    publisher.close()


def test_peers_that_wait_for_the_socket_are_served_after_a_pause_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, publisher = house.peer(), house.peer()
    peer.send(b"sa")
    house.turn_once()
    log = SlowLog()
    log.behind = False
    house.turn.commits = log  # type: ignore[assignment]
    with monkeypatch.context() as full:
        full.setattr(house.listener._sender, "send", lambda _frames, _address: 0)
        publisher.send(b"pa;1")
        house.turn_once()
    log.behind = True
    publisher.send(b"pa;2")
    house.turn_once()
    assert peer.recv(100) == b"a;1"
    log.catch_up()
    assert house.watched() == [(house.sock.fileno(), select.EPOLLIN)]
    house.turn_once()
    assert peer.recv(100) == b"a;2"
    peer.close()
    publisher.close()


def test_what_waits_for_a_full_socket_keeps_its_order(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, publisher = house.peer(), house.peer()
    peer.send(b"sa")
    house.turn_once()
    with monkeypatch.context() as full:
        full.setattr(house.listener._sender, "send", lambda _frames, _address: 0)
        for number in (b"1", b"2", b"3"):
            publisher.send(b"pa;" + number)
            house.turn_once()
    house.turn_once()
    assert [peer.recv(100) for _ in range(3)] == [b"a;1", b"a;2", b"a;3"]
    peer.close()
    publisher.close()


def test_what_waits_for_a_full_socket_is_bounded_and_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, publisher = house.peer(), house.peer()
    peer.send(b"sa")
    house.turn_once()
    monkeypatch.setattr(udp, "MAX_BLOCKED", 1_000)
    with monkeypatch.context() as full:
        full.setattr(house.listener._sender, "send", lambda _frames, _address: 0)
        for _ in range(10):
            publisher.send(b"pa;" + b"x" * 300)
            house.turn_once()
    assert house.turn.stats.dropped["outbox_full"] > 0
    for peers in house.listener._branches.values():
        assert all(sum(map(len, each.frames)) <= 1_000 for each in peers.peers.values())
    peer.close()
    publisher.close()


def test_a_send_that_fails_is_counted_and_told_and_the_next_peer_is_served(house: House) -> None:
    peer, publisher = house.peer(), house.peer()
    peer.send(b"sa")
    house.turn_once()
    branch = house.listener._branches[Dialect.SEMICOLON]
    impossible = house.listener._new_peer(branch, house.listener._receiver.raw(("127.0.0.1", 0)))
    impossible.session = impossible.new_session()
    impossible.session.outbox = impossible
    impossible.session.grant = impossible.grant
    house.turn.sessions.subscribe(impossible.session, (b"a",))
    publisher.send(b"pa;m")
    house.turn_once()
    assert peer.recv(100) == b"a;m"
    assert house.turn.stats.dropped == {"send_failed": 1}
    peer.close()
    publisher.close()


def test_publishers_are_forgotten_and_subscribers_are_not(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp, "MAX_PEERS", 10)
    branch = house.listener._branches[Dialect.SEMICOLON]
    branch.room = 10
    subscribers = [house.peer() for _ in range(15)]
    for peer in subscribers:
        peer.send(b"sa")
    house.turn_once()
    for _ in range(200):
        publisher = house.peer()
        publisher.send(b"pother;m")
        publisher.close()
        house.turn_once()
    assert len(branch.peers) < 60
    publisher = house.peer()
    publisher.send(b"pa;m")
    house.turn_once()
    assert [peer.recv(100) for peer in subscribers] == [b"a;m"] * 15
    for peer in (*subscribers, publisher):
        peer.close()


@pytest.mark.parametrize(
    ("setting", "host", "lease"),
    [
        ("auto", "127.0.0.1", 0),
        ("auto", "127.8.9.10", 0),
        ("auto", "::1", 0),
        ("auto", "192.0.2.1", 86_400),
        ("auto", "2001:db8::1", 86_400),
        ("auto", "fe80::1%eth0", 86_400),
        (0, "192.0.2.1", 0),
        (5, "127.0.0.1", 5),
        (5, "192.0.2.1", 5),
    ],
)
def test_the_lease_of_a_peer(setting: float, host: str, lease: float) -> None:
    assert udp._lease(UdpConfig(lease=setting), host) == lease


@pytest.mark.parametrize(
    ("setting", "seconds"), [("auto", 60), (0, 60), (1, 0.25), (0.1, 0.25), (40, 10), (86_400, 60)]
)
def test_leases_are_looked_at_often_enough_and_not_more(setting: float, seconds: float) -> None:
    assert udp._lease_check(UdpConfig(lease=setting)) == seconds


def test_a_lease_of_24_hours_elsewhere_ends(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(time=1_000.0)
    monkeypatch.setattr(udp, "monotonic", lambda: now.time)
    house.turn.access.rights = Rights(rules("[[allow]]\nanyone = true\ntopics = '#'\n", "rules"))
    house.listener.restore(Dialect.SEMICOLON, ("192.0.2.1", 9), [(b"a",)])
    house.listener.restore(Dialect.SEMICOLON, ("127.0.0.1", 9), [(b"a",)])
    now.time += 86_399
    house.listener._end_leases()
    assert house.subscribed() == 2
    now.time += 2
    house.listener._end_leases()
    assert house.subscribed() == 1, "the one on loopback has none"
    assert house.turn.stats.ended == {"lease_ended": 1}


def test_a_peer_that_is_restored_twice_is_one_peer(house: House) -> None:
    peer, publisher = house.peer(), house.peer()
    address = peer.getsockname()
    house.listener.restore(Dialect.SEMICOLON, address, [(b"a",)])
    house.listener.restore(Dialect.SEMICOLON, address, [(b"a",), (b"b",)])
    assert house.subscribed() == 2
    for datagram in (b"pa;m", b"pb;m"):
        publisher.send(datagram)
    house.turn_once()
    assert [peer.recv(100), peer.recv(100)] == [b"a;m", b"b;m"]
    peer.send(b"u")
    house.turn_once()
    assert house.subscribed() == 0
    with pytest.raises(BlockingIOError):
        peer.recv(100)
    peer.close()
    publisher.close()


def test_what_is_not_restored_is_told_and_the_peer_gets_no_answer(house: House) -> None:
    peer = house.peer()
    house.turn.sessions._limits = Limits(udp_subscriptions=1)
    house.listener.restore(Dialect.PIPE, peer.getsockname(), [(b"a",), (b"b",)])
    house.turn.end()
    assert house.turn.stats.dropped == {"too_many_subscriptions": 1}
    with pytest.raises(BlockingIOError):
        peer.recv(100)
    peer.close()


def test_a_peer_at_an_interface_that_there_is_no_more_is_left_out() -> None:
    house = House()
    sock = open_socket(socket.AF_INET6, "::1", 0, 1 << 20)
    listener = UdpListener(house.turn, house.config, "six", sock, listeners.decoders("udp", house.config.semicolon))
    listener.restore(Dialect.SEMICOLON, ("fe80::1%gone0", 4_000), [exact(b"t")])
    listener.restore(Dialect.SEMICOLON, ("::1", 4_000), [exact(b"t")])
    assert house.subscribed() == 1
    assert house.turn.stats.dropped["peer_gone"] == 1
    listener.stop_reading()
    listener.close()
    house.close()
