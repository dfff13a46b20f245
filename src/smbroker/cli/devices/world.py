"""All devices together: what they say, and who of them hears what in which dialect."""

from typing import Protocol

from smbroker.cli.devices.controls import Controller, Thermostat
from smbroker.cli.devices.curves import Clock
from smbroker.cli.devices.house import House
from smbroker.cli.devices.plant import Plant
from smbroker.cli.devices.sensors import Message
from smbroker.model.message import Dialect


class Part(Protocol):
    topics: set[str]
    devices: set[tuple[str, Dialect]]

    def values(self, now: float) -> list[Message]:
        """What is due; `now` is in seconds since the start and never goes back."""

    def hear(self, topic: str, text: str) -> None: ...


class World:
    def __init__(self, seed: int, clock: Clock) -> None:
        self.house = House(seed, clock)
        self.plant = Plant(seed, clock)
        self.thermostat = Thermostat(seed, clock)
        self.controller = Controller()
        self.parts: list[Part] = [self.house, self.plant, self.thermostat, self.controller]
        self._ears: dict[Dialect, list[Part]] = {
            Dialect.SEMICOLON: [self.house, self.plant, self.controller],
            Dialect.TYPED: [self.thermostat],
        }
        self.topics = {topic for part in self.parts for topic in part.topics}
        self.devices = {device for part in self.parts for device in part.devices}

    def values(self, now: float) -> list[Message]:
        return [message for part in self.parts for message in part.values(now)]

    def hear(self, dialect: Dialect, topic: str, text: str) -> None:
        for part in self._ears[dialect]:
            part.hear(topic, text)
