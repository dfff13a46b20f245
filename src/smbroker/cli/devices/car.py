"""An electric car and its charger in the garage.

drives off ─► unplugged ─► comes home, emptier ─► charging ─► done
                                                  ▲  ▼
                                                 paused      as told, until told otherwise or the next trip
"""

from random import Random

from smbroker.cli.devices.curves import HOUR, STEP

BATTERY = 58.0  # kWh
ENOUGH = 80.0  # per cent; more would wear the battery out
CURRENT = 16.0  # ampere
ARRIVES = 0.9  # part of the power that the battery gets
TRIP = (16.0, 30.0)  # per cent that a day's way takes


class Car:
    def __init__(self, seed: int) -> None:
        self._random = Random(f"car {seed}")
        self.at_home = True
        self.paused = False
        self.soc = self._random.uniform(58, 64)  # state of charge, per cent
        self.power = 0.0  # watts

    @property
    def state(self) -> str:
        if not self.at_home:
            return "unplugged"
        if self.soc >= ENOUGH:
            return "done"
        return "paused" if self.paused else "charging"

    def step(self, at_home: bool, voltage: float) -> None:
        if at_home and not self.at_home:
            self.soc -= self._random.uniform(*TRIP)
            self.paused = False
        self.at_home = at_home
        self.power = CURRENT * voltage if self.state == "charging" else 0.0
        stored = self.power * ARRIVES * STEP / HOUR / 1_000  # kWh
        self.soc = min(ENOUGH, self.soc + 100 * stored / BATTERY)
