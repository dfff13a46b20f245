"""The lane: the short way of a small message that comes alone and is like the one before it from the same client.

Most of what small devices send is like that, and then a turn costs several times what the message itself does. So,
while reads come alone (`Turn.lone`), it leaves by a lane: the frame as it came, at once, to subscribers who take it so.
Whom it has woken may have to run on the broker's own core, so the broker lets them go first (`Lanes.give_way`). The log
gathers it with others (`Commits.keep`), and it is counted with others too, by the next turn, a little later or when
someone wants to know (`Lanes.account`). After a moment in which nothing could be read a few come together: they stay on
the lane. A lane is made for who is subscribed and what is allowed at the time, and closed when that changes.
"""

import asyncio
from collections.abc import Hashable
from os import sched_yield, write
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

from smbroker.core.delivery import Group
from smbroker.core.outbox import Outbox
from smbroker.model.topic import Topic
from smbroker.server.client import Client

if TYPE_CHECKING:
    from smbroker.server.turn import Turn

Way: TypeAlias = tuple[Outbox, asyncio.Transport | None, int]
"""To a subscriber: past its transport, whose descriptor this is; without, through its outbox."""

LONE_READS = 100  # that have a turn each, or none, before one waits for others …
MOST_LONE_READS = 1_600  # … or that many: each time that it has found none, twice as many
ACCOUNT = 0.25  # seconds until what has left is counted at the latest, and its client known to be alive
SMALL_READ = 4_096  # bytes: with more there is work enough for a turn of several reads
LONG_AWAY = 0.0005  # seconds: who comes back only then has given way to one who does not sleep soon …
INSISTENCE = 1.0  # … and for so many does not give way any more


class Lane:
    __slots__ = (
        "__weakref__", "_beginning", "_lanes", "_turn", "_ways", "client", "dialect", "head", "messages", "reached",
        "sent", "size", "topic",
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
        self._ways: list[Way] | None = [_way(outbox) for outbox in to.outboxes]  # none: it is closed
        self.dialect = to.dialect
        self.reached = len(to.outboxes)  # by each message
        self.size = size
        self.head = len(beginning)
        self.messages = 0  # that are not accounted for yet …
        self.sent = 0  # … and bytes that were sent past transports

    def take(self, data: bytes) -> bool:
        """Whether it could leave this way. One piece, since caches are cold between messages that come alone: each
        function that is called costs more than what it does."""
        turn, ways, size, length = self._turn, self._ways, self.size, len(data)
        alike = data.startswith(self._beginning) and (length == size or self._several(data))
        if ways is None or not turn.lone or turn.scheduled or not alike:
            return False
        for outbox, transport, handle in ways:
            if transport is None or outbox.frames or transport.is_closing() or transport.get_write_buffer_size():
                outbox.send(data)
                continue
            try:
                sent = write(handle, data)
            except OSError:
                sent = 0  # the transport will find out why
            if sent < length:
                transport.write(data[sent:])
            self.sent += length
        self._lanes.give_way(length // size)
        if not self.messages:
            self._lanes.begin(self)
        self.messages += length // size
        if turn.commits:
            for end in range(size, length + 1, size):
                turn.commits.keep(self.topic, data[end - size + self.head : end], self.client.origin)
        turn.at_once += 1
        if turn.at_once > turn.patience:
            turn.look_around()
        return True

    def _several(self, data: bytes) -> bool:
        """A few frames, each as long and with the same beginning."""
        length, size, beginning = len(data), self.size, self._beginning
        if length > SMALL_READ or length % size:
            return False
        return all(data.startswith(beginning, start) for start in range(0, length, size))

    def close(self) -> None:
        """For good."""
        self._ways = None


class Lanes:
    """Those of a turn, and what has left by them and is not accounted for yet."""

    __slots__ = ("_due", "_gives_way", "_open", "_turn", "_used")

    def __init__(self, turn: "Turn") -> None:
        self._turn = turn
        self._open: WeakSet[Lane] = WeakSet()
        self._used: list[Lane] = []  # by which messages have left that are not accounted for yet
        self._due = False  # they will be, after a while
        self._gives_way = True

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

    def begin(self, lane: Lane) -> None:
        """It is used, and will have to be accounted for."""
        self._used.append(lane)
        if not self._due:
            self._due = True
            self._turn.loop.call_later(ACCOUNT, self._account_due)

    def give_way(self, messages: int) -> None:
        """To a subscriber who was just woken and waits for this core, not to what computes without end. Where several
        messages come together, who reads them is awake."""
        if messages > 1 or not self._gives_way:
            return
        before = perf_counter()
        sched_yield()
        if perf_counter() - before > LONG_AWAY:
            self._gives_way = False
            self._turn.loop.call_later(INSISTENCE, self._may_give_way)

    def _may_give_way(self) -> None:
        self._gives_way = True

    def _account_due(self) -> None:
        self._due = False
        self.account()

    def close(self) -> None:
        """It may have changed who gets what."""
        for lane in self._open:
            lane.close()
        self._open.clear()

    def account(self) -> None:
        """Counts what has left."""
        used, self._used = self._used, []
        turn = self._turn
        stats = turn.stats
        for lane in used:
            messages, lane.messages = lane.messages, 0
            lane.client.came(messages * lane.size)
            stats.received[lane.client.origin.dialect] += messages
            stats.delivered[lane.dialect] += messages * lane.reached
            stats.bytes_in += messages * (lane.size - lane.head)
            stats.bytes_out += lane.sent
            lane.sent = 0


def _way(outbox: Outbox) -> Way:
    past = outbox.past() if isinstance(outbox, Client) else None
    return (outbox, *past) if past else (outbox, None, -1)
