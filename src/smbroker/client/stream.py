"""A TCP connection to a broker.

One thread may receive while another sends or leaves; what is sent is never interleaved.
"""

import socket
from threading import Lock
from time import monotonic

from smbroker.client.address import Address
from smbroker.client.errors import ClientError

CHUNK = 262_144  # bytes asked of the socket at a time
FAREWELL_TIMEOUT = 1.0  # seconds to wait, on leaving, for a broker that does not read


class Stream:
    def __init__(self, address: Address, timeout: float) -> None:
        self.address = address
        self._socket = address.connected(socket.SOCK_STREAM, timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending = Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise self.address.trouble(error) from error

    def receive(self, deadline: float | None = None) -> bytes:
        """What is there, but at least one byte; a ClientError at the deadline or when the broker closes."""
        left = None if deadline is None else deadline - monotonic()
        try:
            if left is not None and left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            data = self._socket.recv(CHUNK)
        except OSError as error:
            raise self.address.trouble(error) from error
        if not data:
            raise ClientError("closed", f"the broker at {self.address} closed the connection")
        return data

    def leave(self, farewell: bytes = b"") -> None:
        """Says good-bye if that is still possible, and ends the wait of a thread that receives."""
        try:
            self._socket.settimeout(FAREWELL_TIMEOUT)
            with self._sending:
                self._socket.sendall(farewell)
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the broker has left before us
            pass

    def close(self) -> None:
        self._socket.close()
