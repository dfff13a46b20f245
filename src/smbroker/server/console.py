"""What the broker says: standard output for what is prescribed, standard error for the rest.

Lines are collected and written once per turn. A reader that does not read must not stop the broker,
so nothing is written to a pipe or terminal that would block: what then piles up past a bound is
dropped and its number told later. Warnings are limited in rate; those left out are counted, by text
of the same kind. Other people's bytes are shown with control characters escaped.

With `as_json` each line on standard error is an object: ts, level, code (or null) and text. Standard output stays as
it is prescribed.
"""

import json
import os
import select
import stat
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

MAX_WAITING = 1 << 20  # bytes of lines that nobody has read yet
PIECE = 4_096  # PIPE_BUF: what a pipe that polls writable takes without blocking
WARNINGS_PER_SECOND = 20

COLOURS, PLAIN = {"warning": "\x1b[33m", "error": "\x1b[31m"}, "\x1b[0m"


def printable(data: bytes, most: int = 600) -> str:
    """Bytes as one line of text: UTF-8 where it is, everything else escaped; cut after `most` bytes."""
    text = data[:most].decode("utf-8", "backslashreplace")
    if not text.isprintable():
        text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text if len(data) <= most else text + "…"


class Stream:
    """One file descriptor that never blocks us."""

    def __init__(self, descriptor: int) -> None:
        self.colour = os.isatty(descriptor)
        self._descriptor = _opened_again(descriptor) if self.colour else descriptor
        self._waiting = bytearray()
        self._left_out = 0
        self.told: Callable[[str], str] = lambda text: f"({text})\n"
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)
        try:
            self._regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            self._regular = False

    def put(self, text: str) -> None:
        if len(self._waiting) > MAX_WAITING:
            self._left_out += text.count("\n")
        else:
            self._waiting += text.encode("utf-8", "backslashreplace")

    def write(self) -> bool:
        """Writes what can be written now; whether something still waits."""
        while self._waiting:
            if not self._regular and not self._poll.poll(0):
                return True
            piece = self._waiting if self._regular else self._waiting[:PIECE]
            try:
                written = os.write(self._descriptor, piece)
            except BlockingIOError:
                return True
            except OSError:  # closed at the other end: nobody will ever read it
                written = len(self._waiting)
            del self._waiting[:written]
            if self._left_out and not self._waiting:
                self._waiting += self.told(f"{self._left_out} lines left out: nobody was reading").encode()
                self._left_out = 0
        return False


def _opened_again(terminal: int) -> int:
    """A terminal that polls writable may take less than a piece and then block; opened once more it need not,
    while for the shell, which shares the first opening with us, it stays as it is."""
    try:
        return os.open(f"/dev/fd/{terminal}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return terminal


class Console:
    def __init__(
        self,
        clock: Callable[[], float],
        out: Stream | None = None,
        err: Stream | None = None,
        *,
        as_json: bool = False,
    ) -> None:
        self._clock = clock
        self.out = out or Stream(1)
        self.err = err or Stream(2)
        self.waits = False  # whether there may be something to write
        self._as_json = as_json
        if as_json:
            self.err.told = lambda text: _line("warning", "left_out", text)
        self._second = 0.0
        self._said = 0
        self._left_out: Counter[str] = Counter()

    def say(self, line: str) -> None:
        """A prescribed line, on standard output."""
        self.waits = True
        self.out.put(line + "\n")

    def note(self, line: str) -> None:
        """A line on standard error."""
        self.waits = True
        self.err.put(_line("info", None, line) if self._as_json else line + "\n")

    def warn(self, code: str, text: str) -> None:
        """A warning, unless there were many in this second; `code` groups those left out."""
        now = self._clock()
        if now - self._second >= 1:
            self.tell_left_out()
            self._second, self._said = now, 0
        if self._said >= WARNINGS_PER_SECOND:
            self._left_out[code] += 1
            return
        self._said += 1
        self._tell("warning", code, text)

    def error(self, text: str) -> None:
        self._tell("error", None, text)

    def tell_left_out(self) -> None:
        for code, count in self._left_out.most_common(5):
            self._tell("warning", code, f"{count} more like this: {code}")
        self._left_out.clear()

    def write(self) -> bool:
        """Writes what can be written now; whether something still waits."""
        out, err = self.out.write(), self.err.write()
        self.waits = out or err
        return self.waits

    def _tell(self, level: str, code: str | None, text: str) -> None:
        self.waits = True
        if self._as_json:
            self.err.put(_line(level, code, text))
        elif self.err.colour:
            self.err.put(f"{COLOURS[level]}{level}: {text}{PLAIN}\n")
        else:
            self.err.put(f"{level}: {text}\n")


def _line(level: str, code: str | None, text: str) -> str:
    when = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"ts": when, "level": level, "code": code, "text": text}) + "\n"
