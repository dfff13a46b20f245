"""A TCP connection to a broker.

One thread may receive while another sends or leaves; what is sent is never interleaved. TLS knows one caller at a time:
there whoever receives waits outside for bytes to come.
"""

import select
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
                if self.address.tls:
                    self._socket.settimeout(None)
                self._socket.sendall(data)
        except OSError as error:
            raise self.address.trouble(error) from error

    def receive(self, deadline: float | None = None) -> bytes:
        """What is there, but at least one byte; a ClientError at the deadline or when the broker closes."""
        left = None if deadline is None else deadline - monotonic()
        try:
            if left is not None and left <= 0:
                raise TimeoutError
            data = self._receive_tls(deadline) if self.address.tls else self._receive(left)
        except OSError as error:
            raise self.address.trouble(error) from error
        if not data:
            raise ClientError("closed", f"the broker at {self.address} closed the connection")
        return data

    def _receive(self, left: float | None) -> bytes:
        self._socket.settimeout(left)
        return self._socket.recv(CHUNK)

    def _receive_tls(self, deadline: float | None) -> bytes:
        import ssl

        assert isinstance(self._socket, ssl.SSLSocket)
        while True:
            with self._sending:
                self._socket.settimeout(0)
                try:
                    pieces = [self._socket.recv(CHUNK)]
                    while self._socket.pending():  # nobody is told of these by the system
                        pieces.append(self._socket.recv(CHUNK))
                    return b"".join(pieces)
                except ssl.SSLWantReadError:
                    pass
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                raise TimeoutError

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
