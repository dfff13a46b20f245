"""What the simulations are drawn from: a fast clock, slow drifts, bumps of a day, lags, moist air.

Time in a simulation is in seconds since midnight of its first day; `now` is in real seconds since
the start. The clock between them runs fast, so that a day's curves can be watched.
"""

import math
from dataclasses import dataclass
from random import Random

DAY = 86_400.0  # seconds
HOUR = 3_600.0
MINUTE = 60.0
STEP = 5.0  # simulated seconds; fixed, so that what happens does not depend on how often one looks
START = 6 * HOUR  # the house wakes up soon, and the sun rises


@dataclass(frozen=True, slots=True)
class Clock:
    speed: float = 60.0  # simulated seconds per second: a day takes 24 minutes

    def seconds(self, now: float) -> float:
        return START + now * self.speed

    def shown(self, now: float) -> str:
        minutes = int(self.seconds(now) / MINUTE)
        return f"{minutes // 60 % 24:02}:{minutes % 60:02}"


class Drift:
    """Wanders around its mean, never far, never fast: clouds, wind, a town's thirst."""

    def __init__(self, random: Random, mean: float, spread: float, memory: float) -> None:
        self._random = random
        self._spread = spread
        self._memory = memory  # seconds after which it has mostly forgotten where it was
        self.mean = mean
        self.value = random.gauss(mean, spread)

    def step(self) -> float:
        kept = math.exp(-STEP / self._memory)
        wander = self._spread * math.sqrt(1 - kept * kept) * self._random.gauss(0, 1)
        self.value = self.mean + (self.value - self.mean) * kept + wander
        return self.value


def hour_of(seconds: float) -> float:
    return seconds % DAY / HOUR


def bump(hour: float, peak: float, width: float) -> float:
    """1 at the peak hour, falling off to both sides and around midnight."""
    distance = (hour - peak + 12) % 24 - 12
    return math.exp(-0.5 * (distance / width) ** 2)


def lagged(value: float, target: float, lag: float) -> float:
    """The value one step later, on its way to the target."""
    return target + (value - target) * math.exp(-STEP / lag)


def within(value: float, lowest: float, highest: float) -> float:
    return max(lowest, min(highest, value))


def saturation(celsius: float) -> float:
    """Grams of water that a cubic metre of air can hold (Magnus)."""
    pressure = 6.112 * math.exp(17.62 * celsius / (243.12 + celsius))  # hPa
    return 216.7 * pressure / (273.15 + celsius)


def relative_humidity(moisture: float, celsius: float) -> float:
    """Per cent, of air with so many grams of water per cubic metre."""
    return within(100 * moisture / saturation(celsius), 1, 99.5)


def number_heard(text: str, lowest: float, highest: float) -> float | None:
    """A number that somebody published, brought into range; None if it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return within(number, lowest, highest) if math.isfinite(number) else None
