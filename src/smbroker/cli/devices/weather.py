"""The weather around the house: sun, clouds, air. What the house feels depends on it."""

import math
from random import Random

from smbroker.cli.devices.curves import HOUR, Drift, hour_of, relative_humidity, saturation, within

SUNRISE, SUNSET = 6.2, 19.6  # hours: a day in spring
FULL_SUN = 70_000.0  # lux


class Weather:
    def __init__(self, random: Random) -> None:
        self._clouds = Drift(random, 0.4, 0.3, 1.5 * HOUR)
        self._mildness = Drift(random, 0.0, 1.5, 6 * HOUR)
        self._dew_point = Drift(random, 5.0, 1.2, 8 * HOUR)
        self._wind = Drift(random, 3.5, 1.6, 0.5 * HOUR)
        self._pressure = Drift(random, 1014.0, 5.0, 20 * HOUR)
        self.step(0)

    def step(self, seconds: float) -> None:
        hour = hour_of(seconds)
        self.clouds = within(self._clouds.step(), 0, 1)
        height = max(0.0, math.sin(math.pi * (hour - SUNRISE) / (SUNSET - SUNRISE))) if hour > SUNRISE else 0.0
        self.sunshine = height**1.2 * (1 - 0.8 * self.clouds)  # 0 to 1
        self.light = FULL_SUN * self.sunshine + 0.3  # some moon, and the street lamp
        warmth = 4.5 * math.cos(2 * math.pi * (hour - 15) / 24)  # warmest at three
        self.temperature = 8.5 + warmth * (1 - 0.4 * self.clouds) + self._mildness.step()
        self.moisture = saturation(min(self._dew_point.step(), self.temperature - 0.3))  # g/m³
        self.humidity = relative_humidity(self.moisture, self.temperature)
        self.wind = max(0.1, self._wind.step())  # m/s
        self.pressure = self._pressure.step()  # hPa
