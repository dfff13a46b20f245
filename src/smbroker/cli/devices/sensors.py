"""Sensors: which quantity is published how often, by which device, in which dialect.

A simulation gives a table of Sensors; `Board.values(now)` reads those that are due. They do not all
speak at once: each begins at a moment of its own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from smbroker.model.message import Dialect, Kind

NEVER = float("inf")  # seconds: only a change is worth a word


class Message(NamedTuple):
    device: str  # has a socket of its own, as a real one would
    dialect: Dialect
    topic: str
    text: str
    kind: Kind = Kind.STRING  # what typed says it as


@dataclass(frozen=True, slots=True)
class Sensor:
    device: str
    dialect: Dialect
    topic: str
    read: Callable[[], float | str | None]  # None: nothing to say
    every: float  # seconds
    decimals: int = 0
    noise: float = 0.0  # of the measurement, as a standard deviation
    flicker: float = 0.0  # … and as a part of the value
    lowest: float = float("-inf")  # noise must not take it below, as no flow is less than none
    kind: Kind = Kind.STRING
    at_once: bool = False  # a change does not wait for its turn

    def text(self, random: Random) -> str | None:
        value = self.read()
        if value is None or isinstance(value, str):
            return value
        measured = max(self.lowest, random.gauss(value, self.noise + self.flicker * abs(value)))
        return f"{round(measured, self.decimals) + 0.0:.{self.decimals}f}"  # + 0.0: a zero has no sign


class Board:
    def __init__(self, random: Random, sensors: Iterable[Sensor]) -> None:
        self._random = random
        self._sensors = list(sensors)
        self._due = [sensor.every * random.uniform(0.01, 1) for sensor in self._sensors]
        self._last = [sensor.text(random) for sensor in self._sensors]
        self.topics = {sensor.topic for sensor in self._sensors}
        self.devices = {(sensor.device, sensor.dialect) for sensor in self._sensors}

    def values(self, now: float) -> list[Message]:
        messages = []
        for place, sensor in enumerate(self._sensors):
            due = now >= self._due[place]
            if not due and not sensor.at_once:
                continue
            text = sensor.text(self._random)
            if due:
                self._due[place] = max(self._due[place] + sensor.every, now)
            elif text == self._last[place]:
                continue
            self._last[place] = text
            if text is not None:
                messages.append(Message(sensor.device, sensor.dialect, sensor.topic, text, sensor.kind))
        return messages
