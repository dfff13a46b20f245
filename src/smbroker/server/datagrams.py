"""Datagrams in bulk: many received by one system call, runs of them sent by one.

Receiving: `recvmmsg` through ctypes, because it halves the cost of a datagram; without it, `recvfrom`
in a loop. Sending: datagrams of equal length for one address leave as one `sendmsg` with the
UDP_SEGMENT control message, which the kernel cuts up again; where it refuses, one by one.
Errors: with IP_RECVERR the kernel keeps what came back, with the address it came from.
"""

import ctypes
import errno
import socket
import struct
import sys
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

Address: TypeAlias = tuple[str, int]
RawAddress: TypeAlias = Hashable

BATCH = 128  # datagrams per call: a turn's worth
MAX_DATAGRAM = 65_536

SOL_UDP, UDP_SEGMENT = 17, 103
MAX_SEGMENTS, MAX_SEGMENTED = 64, 65_000  # datagrams and bytes of one segmented send
IP_RECVERR, IPV6_RECVERR, MSG_ERRQUEUE = 11, 25, 0x2000
ERROR_HEADER = struct.Struct("=IBBBxII")  # struct sock_extended_err
ORIGIN_ICMP, ORIGIN_ICMP6 = 2, 3
SEND_TRIES = 8  # a send may be told of an earlier one's failure, once for each that came back meanwhile
CAME_BACK = frozenset(  # what routers and hosts answer: told to whichever call comes next on the socket
    (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENONET, errno.EPROTO)
)
MAX_BUFFER = 2**31 - 1  # the most that can be asked for


class Receiver(Protocol):
    told: bool  # of a send that came back: the error queue says which

    def receive(self) -> tuple[list[bytes], Sequence[RawAddress]]: ...

    def address(self, raw: RawAddress) -> Address: ...

    def raw(self, address: Address) -> RawAddress: ...


def open_socket(family: socket.AddressFamily, host: str, port: int, receive_buffer: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, min(receive_buffer, MAX_BUFFER))
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        _ask_for_errors(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _ask_for_errors(sock: socket.socket) -> None:
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    except OSError:
        pass  # elsewhere than on Linux dead peers stay until their lease ends


def receiver(sock: socket.socket) -> Receiver:
    library = ctypes.CDLL(None, use_errno=True)
    return BulkReceiver(sock, library) if hasattr(library, "recvmmsg") else PlainReceiver(sock)


def unreachable(sock: socket.socket) -> Iterator[Address]:
    """The addresses whose datagrams came back, one for each that did."""
    while True:
        try:
            _, ancillary, _, address = sock.recvmsg(0, 512, MSG_ERRQUEUE)
        except OSError:
            return
        for _, _, data in ancillary:
            if len(data) >= ERROR_HEADER.size:
                number, source, *_ = ERROR_HEADER.unpack_from(data)
                if source in (ORIGIN_ICMP, ORIGIN_ICMP6) and number == errno.ECONNREFUSED:
                    yield _named(address)


def _named(address: tuple[Any, ...]) -> Address:
    """As Python gives it, to host and port; the host of a link-local address with its interface."""
    host, port, *rest = address
    scope = rest[1] if rest else 0
    return f"{host}%{_interface(scope)}" if scope else host, port


def _interface(scope: int) -> str:
    """Its name, or its number if it has just gone."""
    try:
        return socket.if_indextoname(scope)
    except OSError:
        return str(scope)


class PlainReceiver:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.told = False

    def receive(self) -> tuple[list[bytes], Sequence[RawAddress]]:
        datagrams: list[bytes] = []
        addresses: list[Address] = []
        while len(datagrams) < BATCH:
            try:
                data, address = self._sock.recvfrom(MAX_DATAGRAM)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in CAME_BACK:
                    raise
                self.told = True
                continue
            datagrams.append(data)
            addresses.append(address)
        return datagrams, addresses

    def address(self, raw: RawAddress) -> Address:
        assert isinstance(raw, tuple)
        return _named(raw)

    def raw(self, address: Address) -> RawAddress:
        if self._sock.family == socket.AF_INET:
            return address
        host, _, interface = address[0].partition("%")
        return host, address[1], 0, socket.if_nametoindex(interface) if interface else 0


class _Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct msghdr"""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("parts", ctypes.c_void_p),
        ("part_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Header(ctypes.Structure):
    """struct mmsghdr"""

    _fields_ = (("message", _Message), ("received", ctypes.c_uint32))


class BulkReceiver:
    """`recvmmsg` into one large buffer; addresses stay raw `sockaddr` bytes until someone asks."""

    def __init__(self, sock: socket.socket, library: ctypes.CDLL) -> None:
        self.told = False
        self._descriptor = sock.fileno()
        self._family = int(sock.family)
        self._call = library.recvmmsg
        self._call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
        self._name_size = 28 if sock.family == socket.AF_INET6 else 16
        self._significant = 28 if sock.family == socket.AF_INET6 else 8  # sockaddr_in ends in padding
        names = (ctypes.c_char * (self._name_size * BATCH))()
        data = (ctypes.c_char * (MAX_DATAGRAM * BATCH))()
        parts = (_Part * BATCH)()
        headers = (_Header * BATCH)()
        for index in range(BATCH):
            parts[index].base = ctypes.addressof(data) + index * MAX_DATAGRAM
            parts[index].length = MAX_DATAGRAM
            headers[index].message.name = ctypes.addressof(names) + index * self._name_size
            headers[index].message.name_length = self._name_size
            headers[index].message.parts = ctypes.addressof(parts) + index * ctypes.sizeof(_Part)
            headers[index].message.part_count = 1
        self._keep = (names, data, parts, headers)
        self._names = memoryview(names).cast("B")
        self._data = memoryview(data).cast("B")
        words = memoryview(headers).cast("B").cast("I")
        self._lengths = words[_Header.received.offset // 4 :: ctypes.sizeof(_Header) // 4]
        self._headers = ctypes.addressof(headers)

    def receive(self) -> tuple[list[bytes], Sequence[RawAddress]]:
        count = self._call(self._descriptor, self._headers, BATCH, 0, None)
        while count < 0 and (ctypes.get_errno() in CAME_BACK or ctypes.get_errno() == errno.EINTR):
            self.told = True
            count = self._call(self._descriptor, self._headers, BATCH, 0, None)
        if count <= 0:
            return [], []
        data, names = self._data, self._names
        lengths = self._lengths[:count].tolist()
        datagrams = [
            data[start : start + length].tobytes()
            for start, length in zip(range(0, count * MAX_DATAGRAM, MAX_DATAGRAM), lengths, strict=True)
        ]
        size, significant = self._name_size, self._significant
        addresses = [names[start : start + significant].tobytes() for start in range(0, count * size, size)]
        return datagrams, addresses

    def address(self, raw: RawAddress) -> Address:
        assert isinstance(raw, bytes)
        port = int.from_bytes(raw[2:4], "big")
        if len(raw) == 8:
            return socket.inet_ntop(socket.AF_INET, raw[4:8]), port
        host = socket.inet_ntop(socket.AF_INET6, raw[8:24])
        scope = int.from_bytes(raw[24:28], sys.byteorder)
        return f"{host}%{_interface(scope)}" if scope else host, port

    def raw(self, address: Address) -> RawAddress:
        host, port = address
        start = self._family.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big")
        if self._family == socket.AF_INET:
            return start + socket.inet_pton(socket.AF_INET, host)
        host, _, interface = host.partition("%")
        scope = socket.if_nametoindex(interface) if interface else 0
        return start + bytes(4) + socket.inet_pton(socket.AF_INET6, host) + scope.to_bytes(4, sys.byteorder)


class Sender:
    """Sends lists of frames to addresses; tells how many it could not send because the socket was full."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.told = False  # of a send that came back: the error queue says which
        self.bytes = 0  # that left with the last call
        self._segments = sys.platform == "linux"
        self._frames: list[bytes] = []  # of the last call: those who are subscribed alike get the same
        self._runs: list[tuple[list[bytes], bytes]] = []  # made of them

    def send(self, frames: list[bytes], address: Address) -> int:
        """How many of the frames left: all, or those before the socket was full. They must not change afterwards."""
        if len(frames) == 1:
            left = self._send_one(frames[0], address)
            self.bytes = len(frames[0]) if left else 0
            return int(left)
        if frames != self._frames:
            self._frames, self._runs = frames, [(run, b"".join(run)) for run in runs(frames)]
        sent = self.bytes = 0
        for run, joined in self._runs:
            done = self._send_run(run, joined, address)
            sent += done
            if done < len(run):
                self.bytes += sum(map(len, run[:done]))
                break
            self.bytes += len(joined)
        return sent

    def _send_run(self, run: list[bytes], joined: bytes, address: Address) -> int:
        if len(run) > 1 and self._segments:
            try:
                control = [(SOL_UDP, UDP_SEGMENT, struct.pack("H", len(run[0])))]
                return len(run) if self._send([joined], control, address) else 0
            except OSError as error:
                # EINVAL: a segment larger than the path's MTU; EIO: no checksum offload. One by one works.
                if error.errno not in (errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP):
                    raise
        for sent, frame in enumerate(run):
            if not self._send_one(frame, address):
                return sent
        return len(run)

    def _send_one(self, frame: bytes, address: Address) -> bool:
        return self._send([frame], [], address)

    def _send(self, parts: list[bytes], control: list[tuple[int, int, bytes]], address: Address) -> bool:
        for tries_left in reversed(range(SEND_TRIES)):
            try:
                self._sock.sendmsg(parts, control, 0, address)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in CAME_BACK or not tries_left:
                    raise
                self.told = True  # of an earlier send, perhaps to another peer: this one has not left yet
            else:
                return True
        raise AssertionError("unreachable")


def runs(frames: list[bytes]) -> Iterator[list[bytes]]:
    """Neighbours of equal length, as many as one segmented send takes."""
    if len(set(map(len, frames))) == 1:
        yield from _pieces(frames)
        return
    start = 0
    for position in range(1, len(frames) + 1):
        if position == len(frames) or len(frames[position]) != len(frames[start]):
            yield from _pieces(frames[start:position])
            start = position


def _pieces(run: list[bytes]) -> Iterator[list[bytes]]:
    most = max(1, min(MAX_SEGMENTS, MAX_SEGMENTED // max(1, len(run[0]))))
    if len(run) <= most:
        yield run
        return
    for start in range(0, len(run), most):
        yield run[start : start + most]
