"""What the programs say, and where.

Results are raw bytes on standard output, one write per batch. Talk is a line on standard error:
errors red and warnings yellow where that is a terminal, plain otherwise. Control characters are
shown escaped there, because part of what is said came over the network.
"""

import functools
import os
import select
import signal
import stat
import sys
from collections.abc import Sequence
from typing import NoReturn

from smbroker.model.errors import SmbError

RED = 31
YELLOW = 33

STDIN = 0
STDOUT = 1
CHUNK = 65_536  # bytes asked of standard input at a time


def say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    print(coloured(printable(text), YELLOW), file=sys.stderr, flush=True)


def error(text: str) -> None:
    print(coloured(printable(text), RED), file=sys.stderr, flush=True)


def fail(text: str, status: int = 1) -> NoReturn:
    error(text)
    sys.exit(status)


def coloured(text: str, colour: int) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if _on_terminal() else text


def printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def text_of(raw: bytes) -> str:
    """Bytes of any kind as text for a line on standard error."""
    return raw.decode(errors="backslashreplace")


def aligned(lines: Sequence[Sequence[str]], numbers: range) -> list[str]:
    """The lines of a table, its heads first; the columns `numbers` stand to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def write_table(lines: Sequence[Sequence[str]], numbers: range) -> None:
    write("".join(f"{line}\n" for line in aligned(lines, numbers)).encode())


def write(data: bytes) -> None:
    """To standard output, at once and whole; BrokenPipeError if nobody reads it any more."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(STDOUT, rest) :]
    except BrokenPipeError:
        raise
    except OSError as failure:
        raise SmbError("output", f"cannot write to standard output: {failure.strerror}") from failure


def unread() -> bool:
    """Whether whoever read standard output has gone."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def message_on_stdin() -> bytes:
    """All of standard input if that is a pipe or a file, otherwise nothing."""
    try:
        mode = os.fstat(STDIN).st_mode
    except OSError:  # standard input is closed
        return b""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return b""
    return b"".join(iter(lambda: os.read(STDIN, CHUNK), b""))


class InputLines:
    """Standard input line by line, for programs that also wait for something else.

    It reads the descriptor itself: what `sys.stdin` has buffered, `select` cannot see, and a
    thread that waits inside `sys.stdin` disturbs the end of the program.
    """

    def __init__(self) -> None:
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # in the background reading fails instead of stopping us
        self.ended = sys.stdin is None  # closed: the number 0 may be somebody else's by now
        self._rest = b""

    def fileno(self) -> int:
        return STDIN

    def read(self) -> list[bytes]:
        """The lines that one read completes; waits if there is nothing to read yet."""
        try:
            data = os.read(STDIN, CHUNK)
        except OSError:  # a terminal that is gone, or that belongs to another job
            data = b""
        if not data:
            self.ended = True
            last, self._rest = self._rest, b""
            return [last] if last else []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


@functools.cache
def _on_terminal() -> bool:
    return sys.stderr.isatty()
