"""Processes that run beside the broker for as long as it does: simulated devices, pipelines.

Each ends when its standard input does, so that it never outlives the broker, whatever way that goes.
One that must always be there (`again`) and ends badly meanwhile is started again, later each time.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread, Timer
from types import FrameType

from smbroker.cli import terminal
from smbroker.cli.signals import SIGNALS

PUT_OFF = 0.1  # seconds
WAITS = (1, 2, 5, 10, 30)  # seconds before one is started again
LASTED = 300.0  # seconds after which the waits begin anew


@dataclass(frozen=True, slots=True)
class Companion:
    name: str  # for people
    words: Sequence[str]  # after `python -m`
    line: bytes = b""  # to its standard input, first
    patience: float = 3.0  # seconds for it to end by itself
    fine: Sequence[int] = (0,)  # exit statuses that need no comment
    again: bool = False  # starts again after any other exit status


@contextmanager
def beside(companions: Sequence[Companion]) -> Iterator[None]:
    """Runs them meanwhile. Signals wait until the children can take them, and then the broker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    children: list[_Child] = []
    try:
        for each in companions:
            children.append(_Child(each))
        for number in SIGNALS:
            signal.signal(number, _put_off)
        for child in children:
            child.tell()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield
    finally:
        for number in SIGNALS:  # we are ending already
            signal.signal(number, signal.SIG_IGN)
        for child in children:  # all at once, and then wait
            child.hang_up()
        for child in children:
            child.end()


class _Child:
    """A companion's process, and the next one if that ends badly."""

    def __init__(self, companion: Companion) -> None:
        self._companion = companion
        self._ending = Event()
        self._changing = Lock()
        self._process = self._started()
        if companion.again:
            Thread(target=self._watch, daemon=True).start()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", *self._companion.words]
        return subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)

    def tell(self) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(self._companion.line)
        except BrokenPipeError:  # it has ended already; how, is told at the end
            pass

    def _watch(self) -> None:
        name, failures = self._companion.name, 0
        while not self._ending.is_set():
            began = time.monotonic()
            status = self._process.wait()
            if status in self._companion.fine or self._ending.is_set():
                return
            if time.monotonic() - began > LASTED:
                failures = 0
            wait = WAITS[min(failures, len(WAITS) - 1)]
            failures += 1
            terminal.warn(f"{name} ended, with exit status {status}; starting again in {wait} s")
            if self._ending.wait(wait):
                return
            with self._changing:
                if not self._ending.is_set():
                    self._process = self._started()
                    self.tell()

    def hang_up(self) -> None:
        with self._changing:
            self._ending.set()
            assert self._process.stdin
            self._process.stdin.close()

    def end(self) -> None:
        try:
            status = self._process.wait(self._companion.patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if status not in self._companion.fine:
            terminal.warn(f"{self._companion.name} ended badly, with exit status {status}")


def _put_off(number: int, _frame: FrameType | None) -> None:
    """Has the signal come again soon: the broker's loop, once it runs, takes signals, but none from before."""
    again = Timer(PUT_OFF, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def stop_at_the_end_of(lines: terminal.InputLines) -> None:
    """For the companion itself: ends it. From here on nobody else may read its standard input."""
    Thread(target=_await_end, args=(lines,), daemon=True).start()


def _await_end(lines: terminal.InputLines) -> None:
    while not lines.ended:
        lines.read()
    os.kill(os.getpid(), signal.SIGTERM)
