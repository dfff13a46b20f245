"""Moments as text and back, without asking a clock: `2026-03-01T12:00:00.000+00:00` and seconds since 1970."""

import re

FORM = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d(?:\.\d+)?))?(?:Z|([+-])(\d\d):?(\d\d)(?::\d\d)?)?", re.ASCII
)
LAST = 253_402_300_799.0  # the end of the year 9999


def as_text(seconds: float) -> str:
    days, rest = divmod(min(max(seconds, 0.0), LAST), 86_400)
    year, month, day = _date(int(days))
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    thousandths = min(int(rest * 1_000), 59_999)
    return f"{year:04}-{month:02}-{day:02}T{int(hours):02}:{int(minutes):02}:{thousandths / 1_000:06.3f}+00:00"


def as_seconds(text: str) -> float | None:
    """None if it is no moment. UTC unless it says otherwise."""
    found = FORM.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute = map(int, found.group(1, 2, 3, 4, 5))
    seconds = _days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + float(found[6] or 0)
    if found[7]:
        ahead = int(found[8]) * 3_600 + int(found[9]) * 60
        seconds -= ahead if found[7] == "+" else -ahead
    return seconds


def _days(year: int, month: int, day: int) -> int:
    """Since 1970. A year here begins with March, so that the odd day of leap years comes last."""
    year -= month <= 2
    month = (month + 9) % 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 719_469


def _date(days: int) -> tuple[int, int, int]:
    """The inverse: the largest year, then month, that does not begin after that day."""
    year = 1970 + days // 366
    while _days(year + 1, 1, 1) <= days:
        year += 1
    month = next(month for month in range(12, 0, -1) if _days(year, month, 1) <= days)
    return year, month, days - _days(year, month, 1) + 1
