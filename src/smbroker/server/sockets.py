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
    """The file descriptor of uvloop's own TCP transport; -1 of others (TLS, WebSockets), which change what they get.

    It is to be written to only while the transport is not closing and has nothing that waits."""
    plain = type(transport).__module__ == "uvloop.loop" and type(transport).__name__ == "TCPTransport"
    return transport.get_extra_info("socket").fileno() if plain else -1
