"""Devices that act on what they hear: they subscribe in one dialect and publish in another.

    thermostat   hears typed        house/ROOM/temperature, house/ROOM/target    says semicolon   …/heating, …/setpoint
    controller   hears semicolon    plant/tank/level, plant/PUMP/command         says soh         plant/PUMP/command

A person may interfere: a target holds until the next switch between day and night, a pump that was
switched by hand stays so until the level asks for something else.
"""

from random import Random

from smbroker.cli.devices.curves import Clock, hour_of, number_heard, within
from smbroker.cli.devices.sensors import Board, Message, Sensor
from smbroker.model.message import Dialect

TARGETS = {  # by day and by night, °C
    "living": (21.0, 18.5),
    "kitchen": (20.0, 18.0),
    "bedroom": (18.5, 17.0),
    "bath": (22.0, 20.0),
    "hall": (18.5, 17.5),
}
DAY_BEGINS, DAY_ENDS = 6.0, 22.0  # hours
HOLDING = 30.0  # per cent that about keep the temperature
GAIN = 70.0  # per cent per kelvin
HALF_FULL, LOW, FULL = 50.0, 30.0, 85.0  # per cent: one pump starts, both do, all stop


class Thermostat:
    def __init__(self, seed: int, clock: Clock) -> None:
        self._clock = clock
        self._by_day = True
        self._temperatures: dict[str, float] = {}
        self.setpoints = {room: day for room, (day, _) in TARGETS.items()}
        self._board = Board(Random(f"thermostat {seed}"), (each for room in TARGETS for each in self._sensors(room)))
        self.topics, self.devices = self._board.topics, self._board.devices
        self.hears = [f"house/{room}/{what}" for room in TARGETS for what in ("temperature", "target")]

    def values(self, now: float) -> list[Message]:
        by_day = DAY_BEGINS <= hour_of(self._clock.seconds(now)) < DAY_ENDS
        if by_day != self._by_day:
            self._by_day = by_day
            self.setpoints = {room: day if by_day else night for room, (day, night) in TARGETS.items()}
        return self._board.values(now)

    def hear(self, topic: str, text: str) -> None:
        match topic.split("/"):
            case ["house", room, "temperature"] if room in TARGETS:
                heard = number_heard(text, -50, 100)
                if heard is not None:
                    self._temperatures[room] = heard
            case ["house", room, "target"] if room in TARGETS:
                self.setpoints[room] = number_heard(text, 5, 30) or self.setpoints[room]

    def _sensors(self, room: str) -> list[Sensor]:
        valve = ("thermostat", Dialect.SEMICOLON)
        return [
            Sensor(*valve, f"house/{room}/heating", lambda: self._heating(room), 3),
            Sensor(*valve, f"house/{room}/setpoint", lambda: f"{self.setpoints[room]:.1f}", 20, at_once=True),
        ]

    def _heating(self, room: str) -> float | None:
        temperature = self._temperatures.get(room)
        return None if temperature is None else within(HOLDING + GAIN * (self.setpoints[room] - temperature), 0, 100)


class Controller:
    """Keeps the tank filled, beginning with another pump each time."""

    def __init__(self) -> None:
        self._commands = {"pump1": "off", "pump2": "off"}  # as last heard or said
        self._level: float | None = None
        self._first = "pump2"
        self.topics = {f"plant/{pump}/command" for pump in self._commands}
        self.devices = {("controller", Dialect.SOH)}

    def values(self, _now: float) -> list[Message]:
        wanted = self._wanted()
        if wanted == self._commands:
            return []
        changed = {pump: command for pump, command in wanted.items() if command != self._commands[pump]}
        self._commands = wanted
        return [Message("controller", Dialect.SOH, f"plant/{pump}/command", text) for pump, text in changed.items()]

    def hear(self, topic: str, text: str) -> None:
        match topic.split("/"):
            case ["plant", "tank", "level"]:
                self._level = number_heard(text, 0, 100)
            case ["plant", pump, "command"] if pump in self._commands and text in ("on", "off"):
                self._commands[pump] = text

    def _wanted(self) -> dict[str, str]:
        if self._level is None:
            return self._commands
        if self._level < LOW:
            return dict.fromkeys(self._commands, "on")
        if self._level > FULL:
            return dict.fromkeys(self._commands, "off")
        if self._level < HALF_FULL and "on" not in self._commands.values():
            self._first = "pump1" if self._first == "pump2" else "pump2"
            return self._commands | {self._first: "on"}
        return self._commands
