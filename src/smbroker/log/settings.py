"""What one may set about the log: `[log]` in the configuration."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSettings:
    seal_rows: int = 1_000_000  # the tail is closed and sealed once it has this many messages
    seal_bytes: int = 256 << 20  # … or this many bytes: it bounds what recovery must check at start
    seal_age: float = 3600.0  # … or its oldest message is this old, in seconds; 0: age never seals
    retain_age: float = 0.0  # sealed segments older than this many seconds are removed; 0: kept for ever
    retain_bytes: int = 0  # oldest sealed segments are removed while the log is larger; 0: no limit
    linger: float = 0.5  # seconds that messages may gather which nobody waits for: a crash may cost so much of those
    recent_bytes: int = 16 << 20  # of the last messages stay in memory too, for clients that fall behind for a moment
