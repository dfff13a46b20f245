"""What the broker counts of itself. Reasons are the `code` of errors and the framers' words."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from smbroker.model.message import Dialect

TIMES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds


class Timing:
    """How long something took, how often: one count for each of `TIMES`, and one for what took longer."""

    __slots__ = ("counts", "last", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(TIMES) + 1)
        self.total = 0.0  # seconds
        self.last = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(TIMES, seconds)] += 1
        self.total += seconds
        self.last = seconds


@dataclass(slots=True)
class Stats:
    received: Counter[Dialect] = field(default_factory=Counter)  # messages, by the publisher's dialect
    delivered: Counter[Dialect] = field(default_factory=Counter)  # messages, by the subscriber's dialect
    dropped: Counter[str] = field(default_factory=Counter)  # input refused or malformed, by reason
    undeliverable: Counter[tuple[Dialect, str]] = field(default_factory=Counter)  # did not fit, by dialect and reason

    bytes_in: int = 0  # of payloads that were published
    bytes_out: int = 0  # of frames that were sent
    not_logged: int = 0  # messages that were relayed while the log could not take them
    ended: Counter[str] = field(default_factory=Counter)  # sessions that the broker ended, by reason
    appends: Timing = field(default_factory=Timing)  # the log's writes and syncs, one for each commit
    commits: Timing = field(default_factory=Timing)  # a message's time to disk: each commit's oldest

    def summary(self) -> str:
        """One line for people; empty when nothing was dropped."""
        parts = [f"{reason} {count}" for reason, count in self.dropped.most_common()]
        parts += [f"{dialect} {reason} {count}" for (dialect, reason), count in self.undeliverable.most_common()]
        parts += [f"{reason} {count}" for reason, count in self.ended.most_common()]
        parts += [f"not_logged {self.not_logged}"] if self.not_logged else []
        return ", ".join(parts)
