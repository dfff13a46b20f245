"""A UDP listener: datagrams in, by first bytes to their dialect; frames out through the same socket.

Peers cannot be heard leaving. A peer whose datagrams come back five times in a row without a word
from it is forgotten, and so is one whose lease has run out; any datagram from it renews the lease.
Nor can it be known where they are: what may be sent to strangers is limited (`strangers`).
"""

import select
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from time import monotonic

from smbroker.core.sessions import Session
from smbroker.dialects import pipe
from smbroker.model.commands import Command
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.filter import Filter
from smbroker.model.message import Dialect, Origin
from smbroker.model.rights import is_loopback
from smbroker.server.client import Client
from smbroker.server.config import Config, UdpConfig
from smbroker.server.console import printable
from smbroker.server.datagrams import Address, RawAddress, Sender, receiver, unreachable
from smbroker.server.gate import network_of
from smbroker.server.strangers import Outgoing, Strangers
from smbroker.server.turn import Turn

MAX_PEERS = 20_000  # publishers that are remembered; subscribers come on top, limited as subscriptions
MAX_BLOCKED = 4 << 20  # bytes that wait for one peer while the socket is full
LEASE_ELSEWHERE = 24 * 3600.0  # seconds, for peers that are not on loopback
FIRST_BYTES = {b"\x01": Dialect.SOH, b"s": Dialect.SEMICOLON, b"p": Dialect.SEMICOLON, b"u": Dialect.SEMICOLON}

REPLIES = {Dialect.PIPE: (b"H", b"E"), Dialect.SOH: (b"A",)}  # what begins so is an answer, not a message
SHORT_REFUSAL = pipe.refusal("refused")

Decode = Callable[[bytes], Command]


class Peer(Client):
    """One address in one dialect."""

    __slots__ = ("address", "asked", "failed", "failures", "heard", "lease", "listener")

    def __init__(self, listener: "UdpListener", dialect: Dialect, address: Address, lease: float) -> None:
        super().__init__(Origin(dialect, *address))
        self.grant = listener.access.grant(dialect, address[0])
        self.listener = listener
        self.address = address
        self.lease = lease  # seconds; 0 none
        self.heard = 0.0
        self.failed = 0.0  # when a send last came back
        self.failures = 0  # sends that came back since the peer was last heard
        self.asked = 0  # bytes of the datagram that is being refused

    @property
    def subscribed(self) -> bool:
        return self.session is not None and bool(self.session.subscriptions)

    def new_session(self) -> Session:
        return Session(self.origin.dialect, self.origin.source, network_of(self.address[0]), self.listener.name)

    def refusal(self, text: str) -> bytes:
        return pipe.refusal(text) if self.origin.dialect is Dialect.PIPE else b""

    def flush(self) -> None:
        frames, self.frames = self.frames, []
        self.listener.send(self, frames)


class LimitedPeer(Peer):
    """One that may not be where it says: what it gets is counted, and no refusal is longer than what it refuses."""

    __slots__ = ("outgoing",)

    outgoing: Outgoing

    def refusal(self, text: str) -> bytes:
        reply = super().refusal(text)
        return reply if len(reply) <= self.asked else reply and SHORT_REFUSAL

    def flush(self) -> None:
        frames, self.frames = self.frames, []
        now, replies = monotonic(), REPLIES.get(self.origin.dialect, ())
        meters = self.outgoing
        kept = []
        for frame in frames:
            if meters.replies and frame.startswith(replies) and not meters.replies.takes(1, now):
                self.listener.leave_out("reply_rate", self)
            elif meters.bytes and not meters.bytes.takes(len(frame), now):
                self.listener.leave_out("send_rate", self)
            else:
                kept.append(frame)
        if kept:
            self.listener.send(self, kept)


class _Unwanted(Exception):
    """A peer that is not taken; it has been counted."""


class _Branch:
    """One dialect of the socket."""

    __slots__ = ("decode", "dialect", "echo", "peers", "room", "rows")

    def __init__(self, dialect: Dialect, decode: Decode, quiet: bool) -> None:
        self.dialect = dialect
        self.decode = decode
        self.echo = dialect is Dialect.SEMICOLON and not quiet
        self.rows = dialect is not Dialect.TYPED  # a publish is a head and the payload as it is: see `_row_end`
        self.peers: dict[RawAddress, Peer] = {}
        self.room = MAX_PEERS


class UdpListener:
    def __init__(
        self, turn: Turn, config: Config, name: str, sock: socket.socket, decoders: Mapping[Dialect, Decode]
    ) -> None:
        self.name = name
        self._loop = loop = turn.loop
        self._turn = turn
        self.access = turn.access
        self._config = config
        self._sock = sock
        self._receiver = receiver(sock)
        self._sender = Sender(sock)
        self._branches = {dialect: _Branch(dialect, decode, config.quiet) for dialect, decode in decoders.items()}
        self._only = next(iter(self._branches.values())) if len(self._branches) == 1 else None
        self._by_first = (
            {} if self._only else {first: self._branches[dialect] for first, dialect in FIRST_BYTES.items()}
        )
        self._strangers = Strangers(config.udp, sock.getsockname()[:2])
        self._blocked: list[Peer] = []
        self._paused = False  # while the log is behind
        # uvloop stops watching a socket that reports an error; an epoll between them hides that from it.
        self._epoll = select.epoll()
        self._epoll.register(sock, select.EPOLLIN)
        loop.add_reader(self._epoll.fileno(), self._ready)
        self._timer = loop.call_later(_lease_check(config.udp), self._end_leases)

    def stop_reading(self) -> None:
        """Replies can still leave."""
        self._timer.cancel()
        self._loop.remove_reader(self._epoll.fileno())

    def close(self) -> None:
        self._epoll.close()
        self._sock.close()

    def restore(self, dialect: Dialect, address: Address, filters: Iterable[Filter]) -> None:
        """A peer that was subscribed before the broker's restart; the limits may be others now."""
        branch = self._branches[dialect]
        try:
            raw = self._receiver.raw(address)
            peer = branch.peers.get(raw) or self._new_peer(branch, raw)
        except _Unwanted:
            return
        except OSError as error:  # an interface that there is no more
            self._turn.stats.dropped["peer_gone"] += 1
            self._turn.console.warn("peer_gone", f"{dialect} {address[0]}: subscribed before the restart: {error}")
            return
        peer.heard = monotonic()
        if peer.session is None:
            peer.session = peer.new_session()
            peer.session.outbox = peer
            peer.session.grant = peer.grant
        for pattern in filters:
            try:
                peer.grant.check_subscribe(pattern)
                self._turn.sessions.subscribe(peer.session, pattern)
            except Refused as error:  # it has asked for nothing now, so it gets no answer
                self._turn.stats.dropped[error.code] += 1
                self._turn.console.warn(error.code, f"{dialect} {peer.origin.source}: {error.text}")

    def serves(self, dialect: Dialect, address: Address) -> bool:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        return dialect in self._branches and self._sock.family == family

    def _ready(self) -> None:
        if self._turn.behind and not self._paused:
            self._pause()
        datagrams, addresses = ([], ()) if self._paused else self._receiver.receive()
        if not datagrams or self._sender.told or self._receiver.told:
            self._note_unreachable()  # first: a word that came after it begins the count anew
        if datagrams:
            self._turn.begin()
            if self._strangers.counts_datagrams:
                datagrams, addresses = self._let_in(datagrams, addresses)
            self._take(datagrams, addresses)
        if self._blocked:
            self._retry()

    def _pause(self) -> None:
        """Nothing is read until the log has caught up; sending goes on."""
        if self._turn.commits:
            self._paused = True
            self._turn.commits.when_caught_up(self._resume)
            self._watch()

    def _resume(self) -> None:
        self._paused = False
        self._watch()

    def _watch(self) -> None:
        reading, writing = 0 if self._paused else select.EPOLLIN, select.EPOLLOUT if self._blocked else 0
        self._epoll.modify(self._sock, reading | writing)

    def _take(self, datagrams: list[bytes], addresses: Sequence[RawAddress]) -> None:
        turn, by_first, now = self._turn, self._by_first, monotonic()
        position, end = 0, len(datagrams)
        while position < end:
            datagram, address = datagrams[position], addresses[position]
            position += 1
            branch = by_first.get(datagram[:1]) or self._branch(datagram)
            if branch is None:
                self._unknown(datagram, address)
                continue
            try:
                peer = branch.peers.get(address) or self._new_peer(branch, address)
                peer.heard = now
                if branch.echo:
                    self._echo(peer, [datagram])
                command = branch.decode(datagram)
                if not isinstance(command, tuple):
                    turn.handle(peer, command)
                elif not branch.rows or position == end or addresses[position] != address:
                    turn.publish(peer, command)
                else:
                    turn.check(peer, command)
                    first, position = position - 1, _row_end(datagrams, addresses, position, len(command[1]))
                    if branch.echo:
                        self._echo(peer, datagrams[first + 1 : position])
                    turn.publish_row(peer, command, _payloads(datagrams[first:position], command[1]))
            except (ProtocolError, Refused) as error:
                peer.asked = len(datagram)
                turn.reject(peer, error)
            except _Unwanted:
                pass

    def _echo(self, peer: Peer, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            self._turn.console.note(f"{peer.origin.source}:{printable(datagram)}")

    def _let_in(
        self, datagrams: list[bytes], addresses: Sequence[RawAddress]
    ) -> tuple[list[bytes], Sequence[RawAddress]]:
        taken = self._strangers.let_in(datagrams, addresses)
        if len(taken[0]) < len(datagrams):
            self._turn.stats.dropped["datagram_rate"] += len(datagrams) - len(taken[0])
            self._turn.console.warn("datagram_rate", f"{self.name}: more datagrams a second than udp.max_datagrams")
        return taken

    def leave_out(self, code: str, peer: Peer) -> None:
        self._turn.stats.dropped[code] += 1
        peer.dropped += 1
        self._turn.console.warn(code, f"{peer.origin.dialect} {peer.origin.source}: more than it may be sent ({code})")

    def _branch(self, datagram: bytes) -> _Branch | None:
        """For a socket of one dialect that one; else what the first byte alone does not tell."""
        if datagram.startswith((pipe.PUBLISH, pipe.SUBSCRIBE)):
            return self._only or self._branches[Dialect.PIPE]
        if self._only:  # pipe answers every datagram that is its own, and no other
            return None if self._only.dialect is Dialect.PIPE else self._only
        return self._branches[Dialect.SOH] if datagram.startswith(b"S") else None

    def _unknown(self, datagram: bytes, address: RawAddress) -> None:
        self._turn.stats.dropped["unknown_dialect"] += 1
        host, port = self._receiver.address(address)
        text = f"{host}:{port}: no known dialect begins like '{printable(datagram, 40)}'"
        self._turn.console.warn("unknown_dialect", text)

    def _new_peer(self, branch: _Branch, address: RawAddress) -> Peer:
        if len(branch.peers) >= branch.room:
            branch.peers = {key: peer for key, peer in branch.peers.items() if peer.subscribed or peer.frames}
            branch.room = MAX_PEERS + 2 * len(branch.peers)
        where = self._receiver.address(address)
        try:
            self._strangers.check(where)
        except Refused as error:
            self._turn.stats.dropped[error.code] += 1
            self._turn.console.warn(error.code, f"{branch.dialect} {where[0]}:{where[1]}: {error.text}")
            raise _Unwanted from error
        outgoing = self._strangers.outgoing(where[0])
        peer = (LimitedPeer if outgoing else Peer)(self, branch.dialect, where, _lease(self._config.udp, where[0]))
        if outgoing:
            assert isinstance(peer, LimitedPeer)
            peer.outgoing = outgoing
        branch.peers[address] = peer
        return peer

    def send(self, peer: Peer, frames: list[bytes]) -> None:
        try:
            sent = self._sender.send(frames, peer.address)
        except OSError as error:
            self._turn.stats.dropped["send_failed"] += len(frames)
            self._turn.console.warn("send_failed", f"cannot send to {peer.origin.source}: {error.strerror}")
            return
        self._turn.stats.bytes_out += self._sender.bytes
        if sent < len(frames):
            self._block(peer, frames[sent:])

    def _block(self, peer: Peer, frames: list[bytes]) -> None:
        """The socket is full: keep the frames in the outbox until it takes more, up to a bound."""
        kept = frames + peer.frames
        if sum(map(len, kept)) > MAX_BLOCKED:
            self._turn.stats.dropped["outbox_full"] += len(kept)
            peer.dropped += len(kept)
            kept = []
        peer.frames = kept
        if kept:
            self._blocked.append(peer)
            self._watch()

    def _retry(self) -> None:
        blocked, self._blocked = self._blocked, []
        for peer in blocked:
            peer.flush()
        self._watch()

    def _note_unreachable(self) -> None:
        self._sender.told = self._receiver.told = False
        counts = Counter(unreachable(self._sock))
        if not counts:
            return
        now = monotonic()
        for address, times in counts.items():
            raw = self._receiver.raw(address)
            for branch in self._branches.values():
                peer = branch.peers.get(raw)
                if peer and peer.subscribed:
                    self._came_back(peer, times, now)
        self._turn.begin()

    def _came_back(self, peer: Peer, times: int, now: float) -> None:
        if peer.heard > peer.failed:
            peer.failures = 0
        peer.failed = now
        peer.failures += times
        if peer.failures >= self._config.udp.unreachable_limit:
            self._forget(peer, "gone_peer", "does not listen any more")

    def _end_leases(self) -> None:
        now = monotonic()
        for peer in list(chain.from_iterable(branch.peers.values() for branch in self._branches.values())):
            if peer.lease and peer.subscribed and now - peer.heard > peer.lease:
                self._forget(peer, "lease_ended", f"was not heard for {peer.lease:g} seconds")
        self._timer = self._loop.call_later(_lease_check(self._config.udp), self._end_leases)

    def _forget(self, peer: Peer, code: str, why: str) -> None:
        assert peer.session is not None
        self._turn.console.warn(code, f"{peer.origin.dialect} {peer.origin.source} {why}: its subscriptions are ended")
        self._turn.forget(peer.session)
        self._turn.stats.ended[code] += 1
        self._turn.begin()


def _row_end(datagrams: list[bytes], addresses: Sequence[RawAddress], position: int, payload: int) -> int:
    """Where the row ends of publishes like the one before `position`, from the same address to the same topic.

    In each of these dialects a publish is a head and the payload: what begins with the same head, and is not longer
    than the one that was decoded, is to be taken as well."""
    first, address = datagrams[position - 1], addresses[position - 1]
    size = len(first)
    head = first[: size - payload]
    while (
        position < len(datagrams)
        and addresses[position] == address
        and len(datagrams[position]) <= size
        and datagrams[position].startswith(head)
    ):
        position += 1
    return position


def _payloads(row: list[bytes], first: bytes) -> list[bytes]:
    head = len(row[0]) - len(first)
    return [datagram[head:] for datagram in row]


def _lease(config: UdpConfig, host: str) -> float:
    if config.lease != "auto":
        return config.lease
    return 0.0 if is_loopback(host) else LEASE_ELSEWHERE


def _lease_check(config: UdpConfig) -> float:
    """Seconds between looks at the leases: often enough that they end in time."""
    return min(60.0, max(0.25, config.lease / 4)) if config.lease and config.lease != "auto" else 60.0
