"""What the broker counts of itself. Reasons are the `code` of errors and the framers' words."""

from collections import Counter
from dataclasses import dataclass, field

from smbroker.model.message import Dialect


@dataclass(slots=True)
class Stats:
    received: Counter[Dialect] = field(default_factory=Counter)  # messages, by the publisher's dialect
    delivered: Counter[Dialect] = field(default_factory=Counter)  # messages, by the subscriber's dialect
    dropped: Counter[str] = field(default_factory=Counter)  # input refused or malformed, by reason
    undeliverable: Counter[tuple[Dialect, str]] = field(default_factory=Counter)  # did not fit, by dialect and reason

    not_logged: int = 0  # messages that were relayed while the log could not take them
    ended: Counter[str] = field(default_factory=Counter)  # sessions that the broker ended, by reason

    def summary(self) -> str:
        """One line for people; empty when nothing was dropped."""
        parts = [f"{reason} {count}" for reason, count in self.dropped.most_common()]
        parts += [f"{dialect} {reason} {count}" for (dialect, reason), count in self.undeliverable.most_common()]
        parts += [f"{reason} {count}" for reason, count in self.ended.most_common()]
        parts += [f"not_logged {self.not_logged}"] if self.not_logged else []
        return ", ".join(parts)
