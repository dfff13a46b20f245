"""Where a broker is, and sockets that are connected to it.

A name may have several addresses. IPv4 goes first, because that is where brokers listen unless
told otherwise, and because a datagram sent to the wrong one is just lost.
"""

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smbroker.client.errors import ClientError

if TYPE_CHECKING:  # it takes a while to load, and few need it
    from ssl import SSLContext

SOON = 0.001  # seconds; a timeout of 0 would mean something else to the socket


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: "SSLContext | None" = field(default=None, compare=False)  # for connections; datagrams have none
    user: str | None = None  # who we are there, where the dialect can say so
    password: bytes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connected(self, kind: socket.SocketKind, timeout: float | None = None) -> socket.socket:
        failure = OSError("the name has no address")
        for family, place in self._places(kind):
            made = socket.socket(family, kind)
            try:
                made.settimeout(None if timeout is None else max(timeout, SOON))
                made.connect(place)
                return self._secured(made) if kind == socket.SOCK_STREAM else made
            except OSError as error:
                made.close()
                failure = error
        raise self.trouble(failure) from failure

    def _secured(self, made: socket.socket) -> socket.socket:
        return self.tls.wrap_socket(made, server_hostname=self.host) if self.tls else made

    def _places(self, kind: socket.SocketKind) -> list[tuple[socket.AddressFamily, Any]]:
        try:
            found = socket.getaddrinfo(self.host, self.port, type=kind)
        except (OSError, UnicodeError) as error:  # the latter for what cannot be a name at all
            raise ClientError("unknown_host", f"cannot find the host {self.host}; check its name") from error
        return sorted(((entry[0], entry[4]) for entry in found), key=lambda place: place[0] != socket.AF_INET)

    def trouble(self, error: OSError) -> ClientError:
        """What the operating system said, as something that a person can act upon."""
        if isinstance(error, ConnectionRefusedError):
            remedy = "is the broker running? start it with: smbbroker"
            return ClientError("nobody_listens", f"nobody listens on {self}; {remedy}")
        if isinstance(error, TimeoutError):
            return ClientError("no_answer", f"no answer from {self}; check host and port")
        if isinstance(error, (ConnectionResetError, BrokenPipeError)):
            return ClientError("closed", f"the broker at {self} closed the connection")
        if why := getattr(error, "verify_message", ""):
            remedy = "name the file of the one who signed it with --cafile"
            return ClientError("tls", f"the certificate of {self} is not trusted: {why}; {remedy}")
        if why := getattr(error, "reason", ""):
            return ClientError("tls", f"no TLS with {self}: {why.replace('_', ' ').lower()}; check the port and --tls")
        return ClientError("network", f"cannot reach {self}: {error.strerror or error}")
