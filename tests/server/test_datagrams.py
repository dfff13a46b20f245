"""Datagrams in bulk: what is sent in one call and what in many is the same to whoever receives it."""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smbroker.server import datagrams
from smbroker.server.datagrams import (
    BATCH,
    MAX_SEGMENTED,
    MAX_SEGMENTS,
    SEND_TRIES,
    SOL_UDP,
    UDP_SEGMENT,
    Address,
    BulkReceiver,
    PlainReceiver,
    Receiver,
    Sender,
    open_socket,
    receiver,
    runs,
    unreachable,
)

FAMILIES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
SOMEWHERE: Address = ("127.0.0.1", 9)


@pytest.fixture(params=FAMILIES.items(), ids=["ipv4", "ipv6"])
def sock(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family, host = request.param
    try:
        sock = open_socket(family, host, 0, 4 << 20)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with sock:
        yield sock


def client_of(sock: socket.socket) -> socket.socket:
    client = socket.socket(sock.family, socket.SOCK_DGRAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    client.bind((FAMILIES[sock.family], 0))
    client.connect(sock.getsockname()[:2])
    client.settimeout(30)
    return client


def address_of(client: socket.socket) -> Address:
    host, port = client.getsockname()[:2]
    return host, port


# --- runs ---


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([5], [1]),
        ([5, 5, 5], [3]),
        ([5, 6, 7], [1, 1, 1]),
        ([5, 5, 6, 6, 6, 5], [2, 3, 1]),
        ([5] * 64, [64]),
        ([5] * 65, [64, 1]),
        ([5] * 130, [64, 64, 2]),
        ([1_000] * 66, [64, 2]),
        ([2_000] * 40, [32, 8]),
        ([4_095] * 20, [15, 5]),
        ([40_000] * 3, [1, 1, 1]),
        ([32_500] * 3, [2, 1]),
        ([65_507] * 2, [1, 1]),
        ([0, 0], [2]),
        ([3, 3, *[70] * 70, 3], [2, 64, 6, 1]),
    ],
)
def test_runs_are_neighbours_of_equal_length_as_many_as_one_send_takes(lengths: list[int], expected: list[int]) -> None:
    assert [len(run) for run in runs([b"x" * length for length in lengths])] == expected


@given(st.lists(st.sampled_from([1, 2, 3, 500, 501, 4_095, 30_000, 65_507]), min_size=1, max_size=200))
def test_runs_keep_every_frame_and_the_order_within_the_kernels_limits(lengths: list[int]) -> None:
    frames = [bytes([number % 251]) * length for number, length in enumerate(lengths)]
    made = list(runs(frames))
    assert [frame for run in made for frame in run] == frames
    for run in made:
        assert len({len(frame) for frame in run}) == 1
        assert len(run) <= MAX_SEGMENTS
        assert len(run) == 1 or sum(map(len, run)) <= MAX_SEGMENTED


# --- sending ---


class FakeSocket:
    """Keeps what is sent; `trouble` may raise instead, told whether the send is segmented and how many came before."""

    def __init__(self, trouble: Callable[[bool, int], None] = lambda _segmented, _calls: None) -> None:
        self.sent: list[tuple[bytes, int]] = []  # bytes, and the length of a segment or 0
        self.calls = 0
        self._trouble = trouble

    def sendmsg(self, parts: list[bytes], control: list[tuple[int, int, bytes]], flags: int, address: Address) -> None:
        assert (flags, address) == (0, SOMEWHERE)
        self.calls += 1
        self._trouble(bool(control), self.calls)
        size = 0
        for level, kind, data in control:
            assert (level, kind) == (SOL_UDP, UDP_SEGMENT)
            (size,) = struct.unpack("H", data)
        self.sent.append((b"".join(parts), size))


def sender(sock: FakeSocket) -> Sender:
    return Sender(sock)  # type: ignore[arg-type]


def raising(number: int, when: Callable[[bool, int], bool]) -> Callable[[bool, int], None]:
    def trouble(segmented: bool, calls: int) -> None:
        if when(segmented, calls):
            raise OSError(number, os.strerror(number))

    return trouble


def test_a_run_leaves_as_one_segmented_send_and_a_single_frame_as_itself() -> None:
    sock = FakeSocket()
    assert sender(sock).send([b"aa", b"bb", b"cc", b"d", b"ee", b"ff"], SOMEWHERE) == 6
    assert sock.sent == [(b"aabbcc", 2), (b"d", 0), (b"eeff", 2)]
    assert sender(sock).send([b"alone"], SOMEWHERE) == 1
    assert sock.sent[-1] == (b"alone", 0)


def test_frames_like_the_last_ones_leave_as_those_did_and_others_as_themselves() -> None:
    sock = FakeSocket()
    made = sender(sock)
    one, other = ([b"aa", b"bb", b"c"], [(b"aabb", 2), (b"c", 0)]), ([b"aa", b"b", b"c"], [(b"aa", 0), (b"bc", 1)])
    for frames, sent in (one, one, other, ([b"aa"], [(b"aa", 0)]), other, one):
        sock.sent.clear()
        assert made.send(list(frames), SOMEWHERE) == len(frames)
        assert sock.sent == sent
        assert made.bytes == len(b"".join(frames))


REFUSED = [errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP]


@pytest.mark.parametrize("number", REFUSED, ids=[errno.errorcode[number] for number in REFUSED])
def test_where_the_kernel_refuses_segments_they_leave_one_by_one(number: int) -> None:
    sock = FakeSocket(raising(number, lambda segmented, _: segmented))
    assert sender(sock).send([b"aa", b"bb", b"c", b"dd", b"ee"], SOMEWHERE) == 5
    assert sock.sent == [(b"aa", 0), (b"bb", 0), (b"c", 0), (b"dd", 0), (b"ee", 0)]


def test_another_error_is_the_callers() -> None:
    for frames in ([b"a"], [b"a", b"b"]):
        with pytest.raises(PermissionError):
            sender(FakeSocket(raising(errno.EPERM, lambda *_: True))).send(frames, SOMEWHERE)


def test_a_full_socket_takes_what_it_takes() -> None:
    frames = [b"aa", b"bb", b"c", b"dd", b"ee"]
    for room, sent in ((0, 0), (1, 2), (2, 3), (3, 5)):
        sock = FakeSocket(raising(errno.EAGAIN, lambda _, calls, room=room: calls > room))
        made = sender(sock)
        assert made.send(frames, SOMEWHERE) == sent
        assert made.bytes == len(b"".join(frames[:sent]))
    assert sender(FakeSocket(raising(errno.EAGAIN, lambda *_: True))).send([b"a"], SOMEWHERE) == 0


def test_a_full_socket_that_refuses_segments_takes_what_it_takes() -> None:
    def trouble(segmented: bool, calls: int) -> None:
        if segmented or calls > 3:
            raise OSError(errno.EINVAL if segmented else errno.EAGAIN, "")

    assert sender(FakeSocket(trouble)).send([b"aa", b"bb", b"cc"], SOMEWHERE) == 2


@pytest.mark.parametrize("number", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_what_an_earlier_send_brought_back_does_not_cost_this_one(number: int) -> None:
    for frames in ([b"a"], [b"a", b"b"]):
        sock = FakeSocket(raising(number, lambda _, calls: calls == 1))
        made = sender(sock)
        assert not made.told
        assert made.send(frames, SOMEWHERE) == len(frames)
        assert b"".join(data for data, _ in sock.sent) == b"".join(frames)
        assert made.told


def test_what_comes_back_every_time_is_this_sends_own() -> None:
    sock = FakeSocket(raising(errno.ENETUNREACH, lambda *_: True))
    with pytest.raises(OSError, match="unreachable"):
        sender(sock).send([b"a"], SOMEWHERE)
    assert sock.calls == SEND_TRIES


LENGTHS = [[64] * 200, [1 + number % 7 for number in range(100)], [1_400] * 100, [4_095] * 40, [500] * 70 + [3] * 5]


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS, ids=range(len(LENGTHS)))
def test_frames_arrive_whole_and_in_order(sock: socket.socket, lengths: list[int], segments: bool) -> None:
    frames = [(b"%d." % number).ljust(length, b".")[:length] for number, length in enumerate(lengths)]
    made = Sender(sock)
    made._segments = segments
    with client_of(sock) as client:
        assert made.send(frames, address_of(client)) == len(frames)
        assert [client.recv(65_536) for _ in frames] == frames


# --- receiving ---


def receivers(sock: socket.socket) -> list[Receiver]:
    return [PlainReceiver(sock), BulkReceiver(sock, ctypes.CDLL(None, use_errno=True))]


def test_on_this_system_datagrams_are_received_in_bulk(sock: socket.socket) -> None:
    assert isinstance(receiver(sock), BulkReceiver)


def test_both_ways_to_receive_give_the_same(sock: socket.socket) -> None:
    sent = [b"", b"a", b"\0", b"x" * 65_507, bytes(range(256)), b"y" * 4_096, b"z"]
    clients = [client_of(sock) for _ in sent]
    for made in receivers(sock):
        for datagram, client in zip(sent, clients, strict=True):
            client.send(datagram)
        received, raw = made.receive()
        assert received == sent
        assert [made.address(each) for each in raw] == [address_of(client) for client in clients]
        assert [made.raw(address_of(client)) for client in clients] == list(raw)
        assert len(set(raw)) == len(clients)
        assert made.receive() == ([], [])
        assert not made.told
    for client in clients:
        client.close()


def test_one_peer_is_the_same_every_time(sock: socket.socket) -> None:
    for made in receivers(sock):
        with client_of(sock) as client:
            client.send(b"1")
            (first,) = made.receive()[1]
            client.send(b"2")
            client.send(b"3")
            assert list(made.receive()[1]) == [first, first]


def test_more_than_a_batch_comes_in_batches(sock: socket.socket) -> None:
    for made in receivers(sock):
        with client_of(sock) as client:
            sent = [b"%d" % number for number in range(BATCH * 2 + 5)]
            for datagram in sent:
                client.send(datagram)
            batches = [made.receive()[0] for _ in range(4)]
            assert list(map(len, batches)) == [BATCH, BATCH, 5, 0]
            assert [datagram for batch in batches for datagram in batch] == sent


def test_what_is_kept_of_a_batch_does_not_change_with_the_next(sock: socket.socket) -> None:
    for made in receivers(sock):
        with client_of(sock) as client:
            client.send(b"first")
            kept, who = made.receive()
            with client_of(sock) as other:
                other.send(b"OTHER")
                made.receive()
            assert kept == [b"first"]
            assert made.address(who[0]) == address_of(client)


def test_what_came_back_is_told_with_its_address_and_costs_no_datagram(sock: socket.socket) -> None:
    for made in receivers(sock):
        gone, client = client_of(sock), client_of(sock)
        where = address_of(gone)
        gone.close()
        sending = Sender(sock)
        for _ in range(3):
            assert sending.send([b"x"], where) == 1
        client.send(b"still read")
        assert made.receive()[0] == [b"still read"]
        assert made.told or sending.told
        assert list(unreachable(sock)) == [where] * 3
        assert list(unreachable(sock)) == []
        assert made.raw(where) == made.raw(where)
        client.close()


def test_a_link_local_address_is_known_with_its_interface_everywhere() -> None:
    scope = socket.if_nametoindex("lo")
    raw = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", 7, 0) + socket.inet_pton(socket.AF_INET6, "fe80::1")
    raw += struct.pack("=I", scope)
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        plain, bulk = receivers(sock)
        assert plain.address(("fe80::1", 7, 0, scope)) == bulk.address(raw) == ("fe80::1%lo", 7)
        assert plain.raw(("fe80::1%lo", 7)) == ("fe80::1", 7, 0, scope)
        assert bulk.raw(("fe80::1%lo", 7)) == raw

    class Queue:
        """One port-unreachable from there."""

        left = 1

        def recvmsg(self, *_: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, tuple[str, int, int, int]]:
            if not self.left:
                raise BlockingIOError
            self.left -= 1
            error = datagrams.ERROR_HEADER.pack(errno.ECONNREFUSED, datagrams.ORIGIN_ICMP6, 1, 4, 0, 0)
            return b"", [(41, 25, error)], 0, ("fe80::1", 7, 0, scope)

    assert list(unreachable(Queue())) == [("fe80::1%lo", 7)]  # type: ignore[arg-type]


def test_only_port_unreachable_counts() -> None:
    queue = [
        (errno.ECONNREFUSED, datagrams.ORIGIN_ICMP, 1),
        (errno.EHOSTUNREACH, datagrams.ORIGIN_ICMP, 2),
        (errno.ECONNREFUSED, 1, 3),  # of local origin
        (errno.ECONNREFUSED, datagrams.ORIGIN_ICMP6, 4),
    ]

    class Queue:
        def recvmsg(self, *_: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, Address]:
            if not queue:
                raise BlockingIOError
            number, origin, port = queue.pop(0)
            return b"", [(0, 11, datagrams.ERROR_HEADER.pack(number, origin, 3, 3, 0, 0))], 0, ("192.0.2.1", port)

    assert list(unreachable(Queue())) == [("192.0.2.1", 1), ("192.0.2.1", 4)]  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_without_bulk_too_an_error_of_a_send_costs_no_datagram(number: int) -> None:
    story: list[object] = [(b"1", SOMEWHERE), OSError(number, ""), (b"2", SOMEWHERE), BlockingIOError()]

    class Told:
        family = socket.AF_INET

        def recvfrom(self, _size: int) -> object:
            step = story.pop(0)
            if isinstance(step, OSError):
                raise step
            return step

    made = PlainReceiver(Told())  # type: ignore[arg-type]
    assert made.receive() == ([b"1", b"2"], [SOMEWHERE, SOMEWHERE])
    assert made.told


# --- opening ---


def test_a_socket_does_not_block_and_an_ipv6_one_takes_ipv6_alone(sock: socket.socket) -> None:
    assert not sock.getblocking()
    if sock.family == socket.AF_INET6:
        assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


def test_a_buffer_larger_than_the_kernel_can_be_asked_for_is_what_it_grants() -> None:
    with open_socket(socket.AF_INET, "127.0.0.1", 0, 1 << 40) as large:
        assert large.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 65_536


def test_a_port_that_is_taken_is_an_error_and_not_shared(sock: socket.socket) -> None:
    with pytest.raises(OSError, match="in use"):
        open_socket(sock.family, *sock.getsockname()[:2], 1 << 16)
