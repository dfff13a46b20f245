"""What the demo shows while it runs: the pace, some values, and what is worth a line of its own.

    06:42 · 29 messages/s · 1,204 so far · living 20.61 °C · 732 W · tank 57 %      the summary
    06:44 · house/hall/door open                                                    a happening

On a terminal the summary stays on the last line and is drawn anew; the cursor waits on an empty line
above it, so that what the broker says finds its place. Elsewhere it is a plain line now and then.
"""

import os
from collections import deque
from collections.abc import Callable, Set

from smbroker.cli.devices.curves import Clock
from smbroker.cli.terminal import YELLOW, coloured, printable

VALUES = {  # shown in the summary, once heard
    "house/living/temperature": "living {} °C",
    "house/power/load": "{} W",
    "plant/tank/level": "tank {} %",
    "plant/main/pressure": "{} bar",
}
WORTH_A_LINE = ("house/hall/door", "plant/alarm/", "plant/pump1/command", "plant/pump2/command")
USUAL = "closed"  # what a door is before one hears of it
OVER = 5.0  # seconds that a rate is taken over
MOST_LINES = 4  # happenings shown at a time
LONGEST = 200  # characters of a happening
REDRAW, FIRST_LINE, NEXT_LINE = 1.0, 3.0, 15.0  # seconds: on a terminal; elsewhere

CLEAR_BELOW, UP = "\x1b[J", "\x1b[A\r"
STDERR = 2


class News:
    """Gathers; asks no clock and writes nothing."""

    def __init__(self, clock: Clock, known: Set[str]) -> None:
        self._clock = clock
        self._known = known  # topics of our own devices; others are people's
        self._values: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._happenings: list[str] = []
        self._more = 0
        self._counts: deque[tuple[float, int]] = deque([(0.0, 0)])
        self.count = 0

    def take(self, topic: str, text: str) -> None:
        self.count += 1
        if topic in VALUES:
            self._values[topic] = text
        if topic not in self._known or (topic.startswith(WORTH_A_LINE) and text != self._last.get(topic, USUAL)):
            self._add(f"{topic} {text}")
        if topic.startswith(WORTH_A_LINE):
            self._last[topic] = text

    def trouble(self, text: str) -> None:
        if text != self._last.get("", ""):
            self._last[""] = text
            self._add(f"not taken by the broker: {text}", YELLOW)

    def _add(self, text: str, colour: int | None = None) -> None:
        if len(self._happenings) >= MOST_LINES:
            self._more += 1
            return
        line = printable(text[:LONGEST])
        self._happenings.append(coloured(line, colour) if colour else line)

    def happenings(self, now: float) -> list[str]:
        """Those since the last call."""
        lines, self._happenings = self._happenings, []
        if self._more:
            lines.append(f"… and {self._more:,} more")
            self._more = 0
        return [f"{self._clock.shown(now)} · {line}" for line in lines]

    def summary(self, now: float) -> str:
        parts = [self._clock.shown(now), f"{self._rate(now):.0f} messages/s", f"{self.count:,} so far"]
        parts += [
            form.format(printable(self._values[topic][:12])) for topic, form in VALUES.items() if topic in self._values
        ]
        return " · ".join(parts)

    def _rate(self, now: float) -> float:
        self._counts.append((now, self.count))
        while len(self._counts) > 2 and self._counts[1][0] <= now - OVER:
            self._counts.popleft()
        since, count = self._counts[0]
        return (self.count - count) / max(now - since, 0.001)


class Screen:
    """Where the news go; when nobody reads there any more, nowhere."""

    def __init__(self, news: News, columns: Callable[[], int] | None) -> None:
        """`columns` of the terminal; None where it is none."""
        self._news = news
        self._columns = columns
        self._next = 0.0 if columns else FIRST_LINE
        self._drawn = ""

    def show(self, now: float) -> str:
        """What is to be written now, perhaps nothing."""
        lines = [f"{line}\n" for line in self._news.happenings(now)]
        due = now >= self._next
        if due:
            self._next = now + (REDRAW if self._columns else NEXT_LINE)
            self._drawn = self._news.summary(now)
        if self._columns is None:
            return "".join(lines) + (f"{self._drawn}\n" if due else "")
        if not lines and not due:
            return ""
        return f"{CLEAR_BELOW}{''.join(lines)}\n{self._drawn[: self._columns() - 1]}{UP}"

    def end(self) -> str:
        return CLEAR_BELOW if self._columns else ""


def columns_of_terminal() -> Callable[[], int] | None:
    if not os.isatty(STDERR):
        return None
    return lambda: os.get_terminal_size(STDERR).columns or 80
