"""What all TCP connections have in common."""

import asyncio
import socket

KEEP_ALIVE = (  # a client that lost its power must not hold its id for ever
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
FULL = 1 << 20  # bytes that wait for a client before it counts as behind


def keep_alive(sock: socket.socket) -> None:
    """Of a listening socket: those that it accepts have its options."""
    for level, option, value in KEEP_ALIVE:
        sock.setsockopt(level, option, value)


def handle_of(transport: asyncio.BaseTransport) -> int:
    """The file descriptor of a transport that passes bytes on as they are; -1 of any other."""
    plain = type(transport).__module__ == "uvloop.loop"  # ours, over TLS and in WebSockets, change what they are given
    return transport.get_extra_info("socket").fileno() if plain else -1
