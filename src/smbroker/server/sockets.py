"""What all TCP connections have in common."""

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
