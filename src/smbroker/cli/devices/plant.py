"""A small water works: two pumps fill a tower, a town drinks from it.

    well ─► pump1, pump2 ─► tank ─► main ─► town        pressure: height of the water, less what flow costs

Now and then a main bursts or a bearing wears out; alarms are raised and cleared. The pumps obey
`plant/PUMP/command`, on or off, whoever publishes it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from smbroker.cli.devices.curves import (
    HOUR,
    MINUTE,
    STEP,
    Clock,
    Drift,
    bump,
    hour_of,
    lagged,
    within,
)
from smbroker.cli.devices.sensors import NEVER, Board, Message, Sensor
from smbroker.model.message import Dialect, Kind

TANK = 90.0  # m³
WELL = 18.5  # metres of water above the pumps while they stand still
DRAWDOWN = 0.07  # metres per m³/h, in the long run
PUMP_FLOW = 36.0  # m³/h of one pump alone
SHARED = 0.9  # … and of each when both push into the same pipe
FULL_SPEED = 1_450.0  # turns per minute
BURSTS = 1 / (9 * HOUR)  # per second
BURST_FLOW = 34.0  # m³/h
REPAIR = 30 * MINUTE
WEAR = 0.012 / HOUR  # of a bearing, per second of running; at 1 it is done for
CRACKS = 1 / (30 * HOUR)  # per second of running: wear that comes at once
SERVICE = 2 * HOUR  # from the alarm to the new bearing


@dataclass(slots=True)
class Pump:
    name: str
    on: bool = False
    speed: float = 0.0  # 0 to 1
    bearing: float = 14.0  # °C
    wear: float = 0.1
    worn_since: float | None = None  # when the alarm went off

    @property
    def current(self) -> float:
        """Ampere."""
        return 2.4 * min(1.0, self.speed * 4) + 9.3 * self.speed**3

    @property
    def vibration(self) -> float:
        """mm/s."""
        return 0.15 + self.speed * (1.0 + 4.8 * self.wear)


@dataclass(slots=True)
class Alarm:
    name: str
    read: Callable[[], float]
    unit: str
    raised_at: float
    cleared_at: float  # on the safe side of `raised_at`, so that it does not flutter
    raised: bool = False
    text: str | None = None  # what was last said

    def look(self) -> None:
        value, above = self.read(), self.raised_at > self.cleared_at
        limit = self.cleared_at if self.raised else self.raised_at
        raised = value > limit if above else value < limit
        if raised != self.raised:
            self.raised = raised
            state = "raised" if raised else "cleared"
            said = {"state": state, "value": round(value, 2), "unit": self.unit, "limit": limit}
            self.text = json.dumps(said, ensure_ascii=False)


class Plant:
    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = random = Random(f"plant {seed}")
        self._clock = clock
        self._seconds = clock.seconds(0)
        self.pumps = {name: Pump(name, wear=random.uniform(0.05, 0.3)) for name in ("pump1", "pump2")}
        self.level = 58.0  # per cent
        self.well = WELL
        self.inflow = self.outflow = 0.0  # m³/h
        self.pressure = 4.0  # bar
        self._thirst = Drift(random, 1.0, 0.07, 25 * MINUTE)
        self._chlorine = Drift(random, 0.42, 0.04, 3 * HOUR)
        self._water = Drift(random, 11.2, 0.4, 12 * HOUR)
        self._stirred = 0.0  # dirt in the water, after what stirs it up
        self._burst_until = 0.0
        self.alarms = [
            Alarm("low_level", lambda: self.level, "%", 25, 32),
            Alarm("burst", lambda: self.outflow, "m³/h", 68, 58),
            Alarm("low_pressure", lambda: self.pressure, "bar", 2.3, 2.7),
            *(Alarm(f"{pump.name}_vibration", _vibration(pump), "mm/s", 4.5, 2.5) for pump in self.pumps.values()),
        ]
        self._step()
        self._board = Board(Random(f"plant sensors {seed}"), self._sensors())
        self.topics, self.devices = self._board.topics, self._board.devices

    def values(self, now: float) -> list[Message]:
        while self._seconds + STEP <= self._clock.seconds(now):
            self._seconds += STEP
            self._step()
        return self._board.values(now)

    def hear(self, topic: str, text: str) -> None:
        match topic.split("/"):
            case ["plant", name, "command"] if name in self.pumps and text in ("on", "off"):
                self.pumps[name].on = text == "on"

    # --- one step ---

    def _step(self) -> None:
        for pump in self.pumps.values():
            self._step_pump(pump)
        self._step_water()
        for alarm in self.alarms:
            alarm.look()

    def _step_pump(self, pump: Pump) -> None:
        pump.speed = lagged(pump.speed, float(pump.on), 14.0)
        if pump.on and pump.speed < 0.5:
            self._stirred = max(self._stirred, 0.5)
        pump.bearing = lagged(pump.bearing, 14 + pump.speed * (24 + 22 * pump.wear), 18 * MINUTE)
        pump.wear += WEAR * pump.speed * STEP
        if self._random.random() < CRACKS * pump.speed * STEP:
            pump.wear += 0.55
        pump.wear = within(pump.wear, 0, 1)
        if pump.worn_since is None and pump.vibration > 4.5:
            pump.worn_since = self._seconds
        elif pump.worn_since is not None and self._seconds - pump.worn_since > SERVICE:
            pump.wear, pump.worn_since = 0.05, None

    def _step_water(self) -> None:
        speeds = [pump.speed for pump in self.pumps.values()]
        together = SHARED if min(speeds) > 0.5 else 1.0
        self.inflow = PUMP_FLOW * together * sum(speeds)
        self.well = lagged(self.well, WELL - DRAWDOWN * self.inflow, 15 * MINUTE)
        if self._random.random() < BURSTS * STEP:
            self._burst_until = self._seconds + REPAIR
            self._stirred = 1.5
        burst = BURST_FLOW if self._seconds < self._burst_until else 0.0
        supply = within(self.level / 5, 0, 1)  # an empty tank gives nothing
        self.outflow = lagged(self.outflow, (self._demand() + burst) * supply, 40)
        self.level = within(self.level + (self.inflow - self.outflow) * STEP / HOUR / TANK * 100, 0, 100)
        friction = 1.25 * (self.outflow / 60) ** 2
        self.pressure = max(0.0, 3.4 + 1.1 * self.level / 100 + 0.006 * self.inflow - friction)
        self._stirred = lagged(self._stirred, 0, 12 * MINUTE)
        self._chlorine.step()
        self._water.step()

    def _demand(self) -> float:
        """m³/h: the town gets up, cooks at noon, and comes home."""
        hour = hour_of(self._seconds)
        habit = 12 + 27 * bump(hour, 7.2, 1.1) + 11 * bump(hour, 12.4, 1.3) + 30 * bump(hour, 19.0, 1.6)
        return habit * within(self._thirst.step(), 0.7, 1.3)

    # --- what is published ---

    def _sensors(self) -> list[Sensor]:
        flows, probe = ("flow meter", Dialect.SOH), ("water probe", Dialect.PIPE)
        return [
            *(sensor for pump in self.pumps.values() for sensor in self._pump_sensors(pump)),
            Sensor("tank gauge", Dialect.TYPED, "plant/tank/level", self._level, 1, 2, noise=0.04, kind=Kind.FLOAT),
            Sensor(*flows, "plant/inlet/flow", lambda: self.inflow, 1, decimals=1, flicker=0.008, lowest=0),
            Sensor(*flows, "plant/outlet/flow", lambda: self.outflow, 1, decimals=1, flicker=0.012, lowest=0),
            Sensor("pressure gauge", Dialect.SEMICOLON, "plant/main/pressure", lambda: self.pressure, 0.5, 2, 0.015),
            Sensor(*probe, "plant/water/temperature", lambda: self._water.value, 4, decimals=1, noise=0.04),
            Sensor(*probe, "plant/water/turbidity", lambda: 0.24 + self._stirred, 2, decimals=2, noise=0.015, lowest=0),
            Sensor(*probe, "plant/water/chlorine", lambda: self._chlorine.value, 4, decimals=2, noise=0.01, lowest=0),
            Sensor("logger", Dialect.PADDED, "plant/status", self._status, 2),
            *(
                Sensor("alarm box", Dialect.PADDED, f"plant/alarm/{alarm.name}", _said(alarm), NEVER, at_once=True)
                for alarm in self.alarms
            ),
            Sensor("well probe", Dialect.MQTT, "plant/well/level", lambda: self.well, 1, decimals=2, noise=0.01),
            Sensor("well probe", Dialect.MQTT, "plant/well/conductivity", self._conductivity, 3, noise=0.8),
        ]

    def _pump_sensors(self, pump: Pump) -> list[Sensor]:
        topic, box = f"plant/{pump.name}/", (pump.name, Dialect.TYPED)
        real = Kind.SHORT_REAL
        return [
            Sensor(*box, topic + "speed", lambda: pump.speed * FULL_SPEED, 1, flicker=0.002, lowest=0, kind=Kind.INT),
            Sensor(*box, topic + "current", lambda: pump.current, 1, 2, flicker=0.01, lowest=0, kind=real),
            Sensor(*box, topic + "vibration", lambda: pump.vibration, 1, 2, flicker=0.03, lowest=0, kind=real),
            Sensor(*box, topic + "bearing", lambda: pump.bearing, 2, 1, noise=0.08, kind=Kind.FLOAT),
        ]

    def _level(self) -> float:
        return within(self.level, 0.2, 99.8)  # what the gauge can tell

    def _conductivity(self) -> float:
        """µS/cm: water from deeper down has more salts."""
        return 486 + 9 * (WELL - self.well)

    def _status(self) -> str:
        return json.dumps(
            {
                "level": round(self.level, 1),
                "inflow": round(self.inflow, 1),
                "outflow": round(self.outflow, 1),
                "pumps": [pump.name for pump in self.pumps.values() if pump.on],
                "alarms": [alarm.name for alarm in self.alarms if alarm.raised],
            }
        )


def _vibration(pump: Pump) -> Callable[[], float]:
    return lambda: pump.vibration


def _said(alarm: Alarm) -> Callable[[], str | None]:
    return lambda: alarm.text
