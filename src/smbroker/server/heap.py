"""How the process asks the system for memory: a turn needs some megabytes, gives them back, and needs them again.

glibc would return them to the system each time, and every page that comes back has to be cleared: that is a
third of a turn's time. So it keeps what was freed, up to a limit. Elsewhere (musl, macOS) nothing is changed.
"""

import ctypes

KEPT = 32 << 20  # bytes that are freed and not given back
LARGE = 32 << 20  # from here on a block is the system's own, and goes back at once: glibc's greatest
AHEAD = 1 << 20  # bytes that are asked for at once

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h


def keep_freed() -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, KEPT)
    mallopt(_TOP_PAD, AHEAD)
    mallopt(_MMAP_THRESHOLD, LARGE)
