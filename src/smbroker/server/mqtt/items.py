"""A message on its way to an MQTT client: as it waits in the session's queue, and once it was sent."""

from typing import TYPE_CHECKING, NamedTuple

from smbroker.model.message import Extra
from smbroker.model.topic import Topic

if TYPE_CHECKING:
    from smbroker.server.mqtt.shared import Share

NO_IDENTIFIERS: tuple[int, ...] = ()


class Item(NamedTuple):
    offset: int  # -1: it is not in the log, or need not come from there again
    topic: Topic
    payload: bytes
    extra: Extra
    qos: int
    retain: bool = False
    identifiers: tuple[int, ...] = NO_IDENTIFIERS
    dup: bool = False
    shared: "tuple[Share, int] | None" = None  # of a shared subscription that is fed from the log: that offset

    @property
    def size(self) -> int:
        """In bytes of memory, about."""
        return len(self.payload) + self.extra.bytes if self.extra.properties else len(self.payload)


class Flight:
    """A message that was sent and not acknowledged yet."""

    __slots__ = ("item", "received")

    def __init__(self, item: Item, received: bool = False) -> None:
        self.item = item
        self.received = received  # QoS 2: PUBREC has come; what is left is PUBREL and PUBCOMP
