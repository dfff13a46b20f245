"""How the programs end when they are told to: SIGINT and SIGTERM raise Stopped in the main thread.

Only the first signal does; later ones are ignored, so that saying good-bye to the broker is not
interrupted. The handlers are set even where SIGINT was ignored, as it is in a shell's background.
"""

import signal
from types import FrameType

from smbroker.model.errors import Stopped as Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130  # the exit status of a program that did not get to do its work


def raise_stopped_on_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(_number: int, _frame: FrameType | None) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Stopped
