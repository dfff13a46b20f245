"""What the demo shows while it runs: the pace, some values, and what is worth a line of its own.

    06:42 · 30 messages/s · 1,254 so far · living 20.61 °C · 5418 W · tank 57 %     the summary
    06:44 · house/hall/door open                                                    a happening

On a terminal the summary stays on the last line and is drawn anew; the cursor waits on an empty line
above it, so that what the broker says finds its place. Elsewhere it is a plain line now and then.
"""

import os
from collections import deque
from collections.abc import Callable, Set

from smbroker.cli.devices.curves import Clock
from smbroker.cli.devices.sensors import NEVER
from smbroker.cli.terminal import YELLOW, coloured, printable

VALUES = {  # shown in the summary, once heard
    "house/living/temperature": "living {} °C",
    "house/power/load": "{} W",
    "plant/tank/level": "tank {} %",
    "plant/main/pressure": "{} bar",
}
ALWAYS = ("plant/alarm/", "plant/pump1/command", "plant/pump2/command")  # worth a line
CHANGES = {"house/hall/door": "closed"}  # worth a line when it is not as before, here at first
OVER = 5.0  # seconds that a rate is taken over
MOST_LINES = 4  # happenings shown at a time
LASTING = 1.0  # seconds after which trouble is told
LONGEST = 200  # characters of a happening
REDRAW, FIRST_LINE, NEXT_LINE = 1.0, 3.0, 15.0  # seconds: on a terminal; elsewhere

CLEAR_BELOW, UP = "\x1b[J", "\x1b[A\r"
STDERR = 2
USUAL_COLUMNS = 80  # of a terminal that does not know


class News:
    """Gathers; asks no clock and writes nothing."""

    def __init__(self, clock: Clock, known: Set[str]) -> None:
        self._clock = clock
        self._known = known  # topics of our own devices; others are people's
        self._values: dict[str, str] = {}
        self._last = dict(CHANGES)
        self._happenings: list[str] = []
        self._more = 0
        self._trouble, self._tell_at = "", NEVER
        self._counts: deque[tuple[float, int]] = deque([(0.0, 0)])
        self.count = 0

    def take(self, topic: str, text: str) -> None:
        self.count += 1
        if topic in VALUES:
            self._values[topic] = text
        changed = topic in self._last and text != self._last[topic]
        if changed:
            self._last[topic] = text
        if changed or topic not in self._known or topic.startswith(ALWAYS):
            self._add(f"{topic} {text}")

    def trouble(self, now: float, text: str) -> None:
        """Told once, if it lasts: while the broker stops, nobody listens for a moment."""
        if text != self._trouble:
            self._trouble, self._tell_at = text, now + LASTING
        elif now >= self._tell_at:
            self._tell_at = NEVER
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
    """What of the news is to be written when."""

    def __init__(self, news: News, columns: Callable[[], int] | None) -> None:
        """`columns` of the terminal, 0 while it is not ours; None where there is none."""
        self.news = news
        self._columns = columns
        self._next = REDRAW if columns else FIRST_LINE
        self._summary = ""

    def show(self, now: float) -> str:
        lines = [f"{line}\n" for line in self.news.happenings(now)]
        due = now >= self._next
        if due:
            self._next = now + (REDRAW if self._columns else NEXT_LINE)
            self._summary = self.news.summary(now)
        if self._columns is None:
            return "".join(lines) + (f"{self._summary}\n" if due else "")
        columns = self._columns() if due or lines else 0
        return f"{CLEAR_BELOW}{''.join(lines)}\n{self._summary[: columns - 1]}{UP}" if columns else ""

    def end(self) -> str:
        """Takes the summary off the terminal, and the ^C that stands where the cursor waits."""
        return f"\r{CLEAR_BELOW}" if self._columns and self._columns() else ""


def columns_of_terminal() -> Callable[[], int] | None:
    return _columns if os.isatty(STDERR) else None


def _columns() -> int:
    try:
        in_background = os.tcgetpgrp(STDERR) != os.getpgrp()
        return 0 if in_background else os.get_terminal_size(STDERR).columns or USUAL_COLUMNS
    except OSError:  # the terminal is gone
        return 0
