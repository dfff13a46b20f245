"""The lane: the short way of a small message that comes alone and is like the one before it from the same client.

Most of what small devices send is like that, and then a turn costs several times what the message itself does. So,
while reads come alone (`Turn.lone`), it leaves by a lane: the frame as it came, at once, to subscribers who take it so.
What does not concern them, counting and the log, is done for many together (`Turn.account`). A lane is made for who
is subscribed and what is allowed at the time, and is of no use any more when that changes (`Turn.epoch`).
"""

from typing import TYPE_CHECKING

from smbroker.core.delivery import Group
from smbroker.model.topic import Topic
from smbroker.server.client import Client

if TYPE_CHECKING:
    from smbroker.server.turn import Turn


class Lane:
    __slots__ = (
        "_beginning", "_epoch", "_outboxes", "_turn", "client", "head", "messages", "size", "subscribers", "topic",
    )  # fmt: skip

    def __init__(
        self, turn: "Turn", client: Client, topic: Topic, subscribers: Group, beginning: bytes, size: int
    ) -> None:
        """For frames of that size with that beginning, after which the payload stands."""
        self._turn = turn
        self._epoch = turn.epoch
        self._beginning = beginning
        self.size = size
        self._outboxes = subscribers.outboxes
        self.subscribers = subscribers
        self.client = client
        self.topic = topic
        self.head = len(beginning)
        self.messages = 0  # that are not accounted for yet

    def take(self, data: bytes) -> bool:
        """Whether it could leave this way."""
        turn = self._turn
        if (
            not turn.lone
            or turn.scheduled
            or turn.epoch != self._epoch
            or len(data) != self.size
            or not data.startswith(self._beginning)
        ):
            return False
        for outbox in self._outboxes:
            outbox.send(data)
        turn.passed_on(self, data)
        return True
