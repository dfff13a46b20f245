"""The broker's own turn, by hand, with clients that note what they are sent."""

import uvloop

from smbroker.core.sessions import Session
from smbroker.model.filter import exact
from smbroker.model.grant import EVERYTHING
from smbroker.model.message import Dialect, Origin
from smbroker.server.client import Client
from smbroker.server.config import Config
from smbroker.server.console import Console
from smbroker.server.gathering import Gathering
from smbroker.server.lane import Lane
from smbroker.server.mqtt.session import FRAMINGS
from smbroker.server.turn import Turn

TOPIC = b"t/x"
HEAD = b"\x30\x08\x00\x03t/x"
FRAME = HEAD + b"abc"


class Noting(Client):
    """Sends nothing; knows what it would have."""

    def __init__(self) -> None:
        super().__init__(Origin(Dialect.MQTT, "127.0.0.1", 1))
        self.grant = EVERYTHING
        self.sent: list[bytes] = []
        self.bytes_by_lane = 0

    def flush(self) -> None:
        self.sent += self.frames
        self.frames.clear()

    def came(self, size: int) -> None:
        self.bytes_by_lane += size


class House:
    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.turn = Turn(self.loop, Config(quiet=True), Console(self.loop.time))
        self.turn._gathering = Gathering(lambda: 0.0)  # which would try a rest whenever this machine is slow
        self.publisher = Noting()

    def subscriber(self, framing: object = FRAMINGS[4]) -> Noting:
        client = Noting()
        session = Session(Dialect.MQTT, "", "")
        session.grant, session.group, session.outbox = EVERYTHING, framing, client
        self.turn.delivery.add(exact(TOPIC), session)
        return client

    def lane(self, size: int = len(FRAME)) -> Lane | None:
        return self.turn.lanes.new(self.publisher, TOPIC, FRAMINGS[4], HEAD, size)

    def read(self, times: int = 1) -> None:
        """A turn that waits for others, and so many reads come."""
        self.turn.begin()
        for _ in range(times):
            self.turn.begin_read(10)
        self.turn.end()
