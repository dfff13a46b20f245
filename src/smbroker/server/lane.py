"""The lane: the short way of a small message that comes alone and is like the one before it from the same client.

Most of what small devices send is like that, and then a turn costs several times what the message itself does. So,
while reads come alone (`Turn.lone`), it leaves by a lane: the frame as it came, at once, to subscribers who take it so.
What does not concern them, counting and the log, is done for many together (`Lanes.account`). A lane is made for who
is subscribed and what is allowed at the time, and closed when that changes.
"""

import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from smbroker.core.delivery import Group
from smbroker.core.outbox import Outbox
from smbroker.model.message import Columns
from smbroker.model.topic import Topic
from smbroker.server.client import Client
from smbroker.server.commits import LINGER

if TYPE_CHECKING:
    from smbroker.server.turn import Turn

SMALL_READ = 4_096  # bytes: with more there is work enough for a turn of several reads


class Lane:
    __slots__ = (
        "__weakref__", "_beginning", "_lanes", "_outboxes", "_turn", "client", "dialect", "head", "messages", "reached",
        "size", "topic",
    )  # fmt: skip

    def __init__(
        self, lanes: "Lanes", turn: "Turn", client: Client, topic: Topic, to: Group, beginning: bytes, size: int
    ) -> None:
        """For frames of that size with that beginning, after which the payload stands."""
        self._lanes = lanes
        self._turn = turn
        self._beginning = beginning
        self.client = client
        self.topic = topic
        self._outboxes: Sequence[Outbox] | None = to.outboxes  # none: it is closed
        self.dialect = to.dialect
        self.reached = len(to.outboxes)  # by each message
        self.size = size
        self.head = len(beginning)
        self.messages = 0  # that are not accounted for yet

    def take(self, data: bytes) -> bool:
        """Whether it could leave this way."""
        turn, outboxes = self._turn, self._outboxes
        if (
            outboxes is None
            or not turn.lone
            or turn.scheduled
            or len(data) != self.size
            or not data.startswith(self._beginning)
        ):
            return False
        for outbox in outboxes:
            outbox.send(data)
        self._lanes.passed_on(self, data)
        return True

    def close(self) -> None:
        """For good."""
        self._outboxes = None


class Lanes:
    """Those of a turn, and what has left by them and is not accounted for yet."""

    __slots__ = ("_lingers", "_open", "_passed", "_turn", "_used")

    def __init__(self, turn: "Turn") -> None:
        self._turn = turn
        self._open: WeakSet[Lane] = WeakSet()
        self._used: list[Lane] = []  # by which messages have left that are not accounted for yet
        self._passed = Columns()  # these, if there is a log
        self._lingers = False  # until they are accounted for

    def new(self, client: Client, topic: Topic, framing: Hashable, beginning: bytes, size: int) -> Lane | None:
        """For messages of the client that are framed so, while nobody but their subscribers waits for them."""
        turn = self._turn
        if size > SMALL_READ or turn.waited_for:
            return None
        to = turn.delivery.subscribers(topic, framing)
        if to is None:
            return None
        lane = Lane(self, turn, client, topic, to, beginning, size)
        self._open.add(lane)
        return lane

    def passed_on(self, lane: Lane, frame: bytes) -> None:
        """A read was a message that has left by the lane."""
        turn = self._turn
        if not lane.messages:
            self._used.append(lane)
            if not self._lingers:
                self._lingers = True
                turn.loop.call_later(LINGER, self._lingered)
        lane.messages += 1
        if turn.commits:
            self._passed.add(lane.topic, frame[lane.head :], lane.client.origin, time.time_ns() // 1000)
        turn.was_lone()

    def close(self) -> None:
        """It may have changed who gets what."""
        for lane in self._open:
            lane.close()
        self._open.clear()

    def account(self) -> None:
        """Counts what has left, and hands it to the log."""
        if not self._used:
            return
        used, self._used = self._used, []
        turn = self._turn
        stats = turn.stats
        for lane in used:
            messages, lane.messages = lane.messages, 0
            lane.client.came(messages * lane.size)
            stats.received[lane.client.origin.dialect] += messages
            stats.delivered[lane.dialect] += messages * lane.reached
            stats.bytes_in += messages * (lane.size - lane.head)
        if turn.commits:
            passed, self._passed = self._passed, Columns()
            turn.commits.submit(passed, ())
            if turn.behind:
                turn.lone = False  # reads go through turns, where they pause

    def _lingered(self) -> None:
        self._lingers = False
        self.account()
        if self._turn.commits:
            self._turn.commits.hand_over()
