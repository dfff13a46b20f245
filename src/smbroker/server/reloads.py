"""What SIGHUP has the broker read again: each part adds itself here.

A part that cannot be read keeps what it has, and says why; the others are read all the same. A terminal that goes
away sends the same signal to what was started in it: then the broker ends.
"""

import os
from collections.abc import Callable

from smbroker.model.errors import UsageError
from smbroker.server.console import Console


class Reloads:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._parts: list[tuple[str, Callable[[], None]]] = []
        self._had_terminal = os.isatty(0)

    def add(self, name: str, read: Callable[[], None]) -> None:
        """`read` raises UsageError, and has then changed nothing."""
        self._parts.append((name, read))

    @property
    def terminal_gone(self) -> bool:
        return self._had_terminal and not os.isatty(0)

    def read_again(self) -> None:
        if not self._parts:
            self._console.note("SIGHUP: there is nothing to read again")
        for name, read in self._parts:
            try:
                read()
            except UsageError as error:
                self._console.error(f"SIGHUP: {error.text}; what was read before stays in force")
            else:
                self._console.note(f"SIGHUP: {name} read again")
