"""What a client can ask of the broker, in words that are the same for every dialect.

A publish is by far the most frequent and so a plain tuple, not an object; each dialect turns
the rest into one of the classes below. `reply` is what the dialect answers, ready for the wire.
"""

from dataclasses import dataclass
from typing import TypeAlias

from smbroker.model.filter import Filter
from smbroker.model.message import Kind
from smbroker.model.topic import Topic

Publish: TypeAlias = tuple[Topic, bytes, Kind, bytes]
"""Topic, payload, kind, and the acknowledgement to send once the message is safe (empty: none)."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    filter: Filter
    reply: bytes = b""  # leaves before any message for this subscriber
    keep: bool = False  # keep messages for the subscriber while it is away (typed `sf`)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    filter: Filter | None  # None: all of this subscriber's subscriptions in this dialect


@dataclass(frozen=True, slots=True)
class Identify:
    """The client says who it is; its subscriptions of earlier connections are its own again."""

    client: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Nothing to do but send `reply`, if there is one."""

    reply: bytes = b""


@dataclass(frozen=True, slots=True)
class Alive:
    """The client answered when asked whether it is still there."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The client says good-bye: forget its subscriptions and close the connection."""


@dataclass(frozen=True, slots=True)
class Reject:
    """One bad request on a connection that lives on: warn, count, drop."""

    code: str
    text: str


Command: TypeAlias = Publish | Subscribe | Unsubscribe | Identify | Answer | Alive | Leave | Reject
