"""A client as the server sees it: who sent a command and where replies go.

A UDP peer and a TCP connection are both clients; each is also the outbox of its session.
"""

import asyncio

from smbroker.core.outbox import Outbox
from smbroker.core.sessions import Session
from smbroker.model.grant import NOTHING
from smbroker.model.message import Origin


class Client(Outbox):
    __slots__ = ("dropped", "grant", "origin", "owed", "session", "written")

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin
        self.grant = NOTHING  # what it may do
        self.owed = 0  # acknowledgements that wait for the log
        self.dropped = 0  # frames that it was too slow for
        self.written = 0  # bytes, by a connection, so far
        self.session: Session | None = None  # made with the first subscription, or by the client's id

    @property
    def full(self) -> bool:
        """Whether the client is behind with reading: those who can come back to it later should."""
        return False

    @property
    def waiting(self) -> int:
        """Bytes that wait to be sent."""
        return sum(map(len, self.frames))

    def left(self) -> int:
        """How many of the bytes written the system has taken."""
        return self.written

    def past(self) -> tuple[asyncio.Transport, int] | None:
        """A transport that may be passed by while it is not closing and nothing waits there, and its descriptor."""
        return None

    def came(self, size: int) -> None:
        """So many bytes have come by a lane."""

    def new_session(self) -> Session:
        """The session that this client's first subscription makes."""
        raise NotImplementedError

    def refusal(self, text: str) -> bytes:  # noqa: ARG002
        """What the dialect tells a client that is refused; empty where it knows no such thing."""
        return b""

    def unkept(self, ack: bytes, text: str) -> bytes:  # noqa: ARG002
        """Instead of `ack`, when the log could not take the message; empty: the connection ends."""
        return self.refusal(text)

    def end_unkept(self, text: str) -> None:  # noqa: ARG002
        """Ends the connection, since the dialect cannot say that the log could not take a message."""
        self.close()

    def close(self) -> None:
        """Ends a connection once what waits for it is written and nothing is owed to it. A peer has none."""

    def acknowledged(self, ack: bytes) -> None:
        """This acknowledgement leaves."""

    def paid(self) -> None:
        """Nothing is owed any more."""
