"""Processes that run beside the broker for as long as it does: simulated devices, pipelines.

Each ends when its standard input does, so that it never outlives the broker, whatever way that goes.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Timer
from types import FrameType

from smbroker.cli import terminal
from smbroker.cli.signals import SIGNALS

PUT_OFF = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Companion:
    name: str  # for people
    words: Sequence[str]  # after `python -m`
    line: bytes = b""  # to its standard input, first
    patience: float = 3.0  # seconds for it to end by itself
    fine: Sequence[int] = (0,)  # exit statuses that need no comment


@contextmanager
def beside(companions: Sequence[Companion]) -> Iterator[None]:
    """Runs them meanwhile. Signals wait until the children can take them, and then the broker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    children: list[tuple[Companion, subprocess.Popen[bytes]]] = []
    try:
        for each in companions:
            command = [sys.executable, "-P", "-m", *each.words]
            children.append((each, subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)))
        for number in SIGNALS:
            signal.signal(number, _put_off)
        for each, child in children:
            _tell(child, each.line)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield
    finally:
        for number in SIGNALS:  # we are ending already
            signal.signal(number, signal.SIG_IGN)
        for _, child in children:  # all at once, and then wait
            assert child.stdin
            child.stdin.close()
        for each, child in children:
            _end(each, child)


def _tell(child: subprocess.Popen[bytes], line: bytes) -> None:
    assert child.stdin
    try:
        child.stdin.write(line)
    except BrokenPipeError:  # it has ended already; how, is told at the end
        pass


def _put_off(number: int, _frame: FrameType | None) -> None:
    """Has the signal come again soon: the broker's loop, once it runs, takes signals, but none from before."""
    again = Timer(PUT_OFF, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _end(companion: Companion, child: subprocess.Popen[bytes]) -> None:
    try:
        status = child.wait(companion.patience)
    except subprocess.TimeoutExpired:
        child.kill()
        status = child.wait()
    if status not in companion.fine:
        terminal.warn(f"{companion.name} ended badly, with exit status {status}")
