"""The lane: the short way of a small message that comes alone and is like the one before it from the same client.

Most of what small devices send is like that, and then a turn costs several times what the message itself does. So,
while reads come alone (`Turn.lone`), it leaves by a lane: the frame as it came, at once, to subscribers who take it so.
What does not concern them, counting and the log, is done for many together (`Turn.account`). A lane is made for who
is subscribed and what is allowed at the time, and closed when that changes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smbroker.core.delivery import Group
from smbroker.core.outbox import Outbox
from smbroker.model.topic import Topic
from smbroker.server.client import Client

if TYPE_CHECKING:
    from smbroker.server.turn import Turn


class Lane:
    __slots__ = (
        "__weakref__", "_beginning", "_outboxes", "_turn", "client", "dialect", "head", "messages", "reached", "size",
        "topic",
    )  # fmt: skip

    def __init__(
        self, turn: "Turn", client: Client, topic: Topic, subscribers: Group, beginning: bytes, size: int
    ) -> None:
        """For frames of that size with that beginning, after which the payload stands."""
        self._turn = turn
        self._beginning = beginning
        self.client = client
        self.topic = topic
        self._outboxes: Sequence[Outbox] | None = subscribers.outboxes  # none: it is closed
        self.dialect = subscribers.dialect
        self.reached = len(subscribers.outboxes)  # by each message
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
        turn.passed_on(self, data)
        return True

    def close(self) -> None:
        """For good."""
        self._outboxes = None
