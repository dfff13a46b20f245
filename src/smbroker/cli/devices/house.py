"""A house of five rooms with two people, their day, and what it does to air, light and power.

    people ─► doors, windows, lamps, shower, stove ─┬─► moisture ─► humidity
    weather ─► light, losses, solar power           ├─► warmth ─► temperature
    radiators, as the thermostat commands them ─────┘
    all that draws current, less what the sun gives ─► power, energy

The radiators obey `house/ROOM/heating`, in per cent, and the car's charger `house/garage/charging`, on or off, whoever
publishes it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from smbroker.cli.devices import curves
from smbroker.cli.devices.car import Car
from smbroker.cli.devices.curves import DAY, HOUR, MINUTE, STEP, Clock, Drift, hour_of, lagged, number_heard
from smbroker.cli.devices.sensors import Board, Message, Sensor
from smbroker.cli.devices.weather import Weather
from smbroker.model.message import Dialect, Kind

WALLS = 22 * HOUR  # how long a room keeps its warmth
OPEN_WINDOW = 1.2 * HOUR  # … and with the window open
RADIATOR = 2.6 / HOUR  # kelvin per second, fully open
RADIATOR_LAG = 8 * MINUTE
HEATING_WATER = 1_160.0  # watts that a kelvin between supply and return is worth: 1,000 litres an hour
DARK, BRIGHT = 120.0, 200.0  # lux of daylight: people switch the lamp on, and off again

PLAN = (  # a working day: the hour, where people are from then on, what they do there
    (6.6, "bath", "shower"),
    (7.0, "kitchen", "kettle"),
    (7.6, "bedroom", "air"),
    (8.1, "", "leave"),
    (17.4, "kitchen", "return"),
    (18.2, "kitchen", "cook"),
    (19.1, "living", "television"),
    (22.4, "bath", ""),
    (22.8, "bedroom", ""),
)
LATENESS = 7 * MINUTE  # people are not clocks
LASTS = {  # seconds that a deed lasts; the rest of it is what it does
    "shower": 9 * MINUTE,
    "kettle": 4 * MINUTE,
    "air": 14 * MINUTE,
    "leave": 2 * MINUTE,
    "return": 2 * MINUTE,
    "cook": 35 * MINUTE,
    "television": 190 * MINUTE,
    "visitor": 1.5 * MINUTE,
    "washing": 95 * MINUTE,
}
WASHING = 9.3 * HOUR  # the machine's timer
VISITORS = 1 / (5 * HOUR)  # per second, by day: the post, a neighbour
WASHER = (  # until this part of the programme: its phase, watts, turns per minute
    (0.10, "fill", 40, 50),
    (0.40, "heat", 2_050, 50),
    (0.70, "wash", 180, 55),
    (0.85, "rinse", 150, 60),
    (1.01, "spin", 420, 1_200),
)


@dataclass(slots=True)
class Room:
    name: str
    windows: float  # part of the light outside that comes in
    temperature: float
    moisture: float = 8.0  # g/m³
    heating: float = 28.0  # per cent, as commanded
    warmth: float = 28.0  # per cent, as the radiator gives it by now
    light: float = 0.0  # lux
    lamp: bool = False
    window_open: bool = False

    @property
    def humidity(self) -> float:
        return curves.relative_humidity(self.moisture, self.temperature)


def rooms() -> list[Room]:
    return [
        Room("living", 0.016, 19.4),
        Room("kitchen", 0.011, 19.1),
        Room("bedroom", 0.008, 18.2),
        Room("bath", 0.004, 20.1),
        Room("hall", 0.002, 18.6),
    ]


class House:
    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = Random(f"house {seed}")
        self._clock = clock
        self._seconds = clock.seconds(0)
        self.weather = Weather(self._random)
        self.rooms = {room.name: room for room in rooms()}
        self.people = "bedroom"
        self.door_open = False
        self._plan = self._day_plan(0)
        self._deeds: dict[str, float] = {}  # what is going on, and until when
        self._base = Drift(self._random, 95, 12, 20 * MINUTE)  # watts that are always drawn
        self._voltage = Drift(self._random, 231, 1.6, 10 * MINUTE)
        self._frequency = Drift(self._random, 50, 0.018, 2 * MINUTE)
        self.car = Car(seed)
        self.energy = 4_218.0  # kWh
        self.load = self.solar = self.heat_pump = 0.0  # watts
        self._step()
        self._board = Board(Random(f"house sensors {seed}"), self._sensors())
        self.topics, self.devices = self._board.topics, self._board.devices

    def values(self, now: float) -> list[Message]:
        while self._seconds + STEP <= self._clock.seconds(now):
            self._seconds += STEP
            self._step()
        return self._board.values(now)

    def hear(self, topic: str, text: str) -> None:
        match topic.split("/"):
            case ["house", name, "heating"] if name in self.rooms:
                heating = number_heard(text, 0, 100)
                if heating is not None:
                    self.rooms[name].heating = heating
            case ["house", "garage", "charging"] if text in ("on", "off"):
                self.car.paused = text == "off"

    # --- one step ---

    def _step(self) -> None:
        self.weather.step(self._seconds)
        self._live()
        for room in self.rooms.values():
            self._step_room(room)
        self._draw_power()

    def _live(self) -> None:
        while self._plan[0][0] <= self._seconds:
            _, self.people, deed = self._plan.pop(0)
            if deed:
                self._begin(deed)
            if len(self._plan) < len(PLAN):
                self._plan += self._day_plan(int(self._plan[-1][0] / DAY) + 1)
        by_day = 9 < hour_of(self._seconds) < 20
        if by_day and self._random.random() < VISITORS * STEP:
            self._begin("visitor")
        self._deeds = {deed: until for deed, until in self._deeds.items() if until > self._seconds}
        self.door_open = bool(self._deeds.keys() & {"leave", "return", "visitor"})
        self.rooms["bedroom"].window_open = "air" in self._deeds
        self.rooms["kitchen"].window_open = "cook" in self._deeds and self._left("cook") < 0.3

    def _begin(self, deed: str) -> None:
        self._deeds[deed] = self._seconds + LASTS[deed]

    def _left(self, deed: str) -> float:
        """The part of a deed that is still to be done."""
        return (self._deeds.get(deed, self._seconds) - self._seconds) / LASTS[deed]

    def _day_plan(self, day: int) -> list[tuple[float, str, str]]:
        late = self._random.uniform
        plan = [(day * DAY + hour * HOUR + late(-LATENESS, LATENESS), room, deed) for hour, room, deed in PLAN]
        return sorted([*plan, (day * DAY + WASHING, "", "washing")])

    def _step_room(self, room: Room) -> None:
        weather, somebody = self.weather, self.people == room.name
        draughty = room.window_open or (room.name == "hall" and self.door_open)
        daylight = weather.light * room.windows
        room.lamp = somebody and not self._asleep and daylight < (BRIGHT if room.lamp else DARK)
        room.light = daylight + (240 if room.lamp else 0) + (35 if self._television(room) else 0)
        room.warmth = lagged(room.warmth, room.heating, RADIATOR_LAG)
        room.temperature = lagged(room.temperature, weather.temperature, OPEN_WINDOW if draughty else WALLS)
        gains = RADIATOR * room.warmth / 100 + weather.sunshine * room.windows * 25 / HOUR + 0.15 / HOUR * somebody
        source = 0.35 / HOUR * somebody  # g/m³ per second: breath
        if room.name == "bath" and "shower" in self._deeds:
            gains, source = gains + 5 / HOUR, source + 45 / HOUR
        if room.name == "kitchen" and "cook" in self._deeds:
            gains, source = gains + 2.5 / HOUR, source + 9 / HOUR
        room.temperature += gains * STEP
        room.moisture = lagged(room.moisture, weather.moisture, (0.3 if draughty else 1.8) * HOUR) + source * STEP
        room.moisture = min(room.moisture, 0.99 * curves.saturation(room.temperature))

    @property
    def _asleep(self) -> bool:
        return not 6.3 < hour_of(self._seconds) < 23.2

    def _television(self, room: Room) -> bool:
        return room.name == "living" and "television" in self._deeds

    # --- power ---

    def _draw_power(self) -> None:
        fridge = 85 if self._seconds % (42 * MINUTE) < 14 * MINUTE else 0
        lamps = sum(28 for room in self.rooms.values() if room.lamp)
        kettle = 2_000 if "kettle" in self._deeds else 0
        oven = 2_300 if "cook" in self._deeds and self._seconds % (2 * MINUTE) < 70 else 0
        television = 115 if "television" in self._deeds else 0
        self.heat_pump = 4.2 * sum(room.warmth for room in self.rooms.values())
        self.solar = 4_800 * self.weather.sunshine
        washing = self._washing()
        self.car.step(bool(self.people), self._voltage.value)
        self.load = self._base.step() + fridge + lamps + kettle + oven + television + self.heat_pump + self.car.power
        self.load += washing[1] if washing else 0
        self.energy += self.load * STEP / HOUR / 1_000
        self._voltage.mean = 231 - 0.0006 * (self.load - self.solar)  # the feeder is long
        self._voltage.step()
        self._frequency.step()

    def _washing(self) -> tuple[str, int, int] | None:
        if "washing" not in self._deeds:
            return None
        done = 1 - self._left("washing")
        return next((phase, watts, turns) for until, phase, watts, turns in WASHER if done < until)

    # --- what is published ---

    def _sensors(self) -> list[Sensor]:
        return [
            *(sensor for room in self.rooms.values() for sensor in self._room_sensors(room)),
            *self._weather_sensors(),
            *self._power_sensors(),
            self._contact("hall/door", lambda: self.door_open),
            self._contact("bedroom/window", lambda: self.rooms["bedroom"].window_open),
            self._contact("kitchen/window", lambda: self.rooms["kitchen"].window_open),
            Sensor("washer", Dialect.PADDED, "house/bath/washer", self._washer_status, 3, at_once=True),
            self._contact("garage/door", lambda: bool(self._deeds.keys() & {"leave", "return"}), Dialect.MQTT),
            Sensor("charger", Dialect.MQTT, "house/garage/charger", self._charger_status, 2),
            Sensor("heat pump", Dialect.MQTT, "house/cellar/heat_pump", self._heat_pump_status, 3),
        ]

    def _room_sensors(self, room: Room) -> list[Sensor]:
        topic = f"house/{room.name}/"
        climate = (f"{room.name} climate", Dialect.SEMICOLON)
        light = (f"{room.name} light", Dialect.SOH)
        return [
            Sensor(*climate, topic + "temperature", lambda: room.temperature, 2, decimals=2, noise=0.03),
            Sensor(*climate, topic + "humidity", lambda: room.humidity, 4, decimals=1, noise=0.2),
            Sensor(*light, topic + "light", lambda: room.light, 2, flicker=0.01, lowest=0),
            Sensor(*light, topic + "lamp", lambda: _switch(room.lamp), 20, at_once=True),
        ]

    def _weather_sensors(self) -> list[Sensor]:
        air, station = self.weather, ("weather station", Dialect.PIPE)
        return [
            Sensor(*station, "house/outdoor/temperature", lambda: air.temperature, 2, decimals=1, noise=0.06),
            Sensor(*station, "house/outdoor/humidity", lambda: air.humidity, 4, decimals=0, noise=0.5),
            Sensor(*station, "house/outdoor/light", lambda: air.light, 2, flicker=0.01, lowest=0),
            Sensor(*station, "house/outdoor/wind", lambda: air.wind, 2, decimals=1, noise=0.5, lowest=0),
            Sensor(*station, "house/outdoor/pressure", lambda: air.pressure, 10, decimals=1, noise=0.05),
        ]

    def _power_sensors(self) -> list[Sensor]:
        meter, grid = ("power meter", Dialect.TYPED), ("grid meter", Dialect.TYPED)
        whole, real, exact = Kind.INT, Kind.SHORT_REAL, Kind.FLOAT
        return [
            Sensor(*meter, "house/power/load", lambda: self.load, 1, noise=4, lowest=0, kind=whole),
            Sensor(*meter, "house/power/solar", lambda: self.solar, 1, flicker=0.005, lowest=0, kind=whole),
            Sensor(*meter, "house/power/heating", lambda: self.heat_pump, 2, noise=2, lowest=0, kind=whole),
            Sensor(*meter, "house/power/grid", lambda: self.load - self.solar, 1, noise=4, kind=whole),
            Sensor(*meter, "house/power/energy", lambda: self.energy, 5, decimals=3, kind=exact),
            Sensor(*grid, "house/grid/voltage", lambda: self._voltage.value, 2, 2, noise=0.15, kind=real),
            Sensor(*grid, "house/grid/frequency", lambda: self._frequency.value, 2, 3, noise=0.002, kind=exact),
        ]

    def _contact(self, place: str, is_open: Callable[[], bool], dialect: Dialect = Dialect.PADDED) -> Sensor:
        device = f"{place.replace('/', ' ')} contact"
        return Sensor(device, dialect, f"house/{place}", lambda: "open" if is_open() else "closed", 30, at_once=True)

    def _washer_status(self) -> str | None:
        washing = self._washing()
        if washing is None:
            return None
        phase, watts, turns = washing
        left = round(self._left("washing") * LASTS["washing"] / MINUTE)
        return json.dumps({"phase": phase, "watts": watts, "rpm": turns, "minutes_left": left})

    def _charger_status(self) -> str:
        car = self.car
        soc = round(car.soc, 1) if car.at_home else None  # it asks the car, through the cable
        return json.dumps({"power": round(car.power), "soc": soc, "state": car.state})

    def _heat_pump_status(self) -> str:
        supply = 25 + self.heat_pump / 175  # °C: the more the rooms ask for, the warmer
        lift = supply - self.weather.temperature + 10  # kelvin, with what the exchangers need
        cop = 0.45 * (supply + 273) / lift if self.heat_pump else 0.0  # heat for power: nearly half of Carnot's
        back = supply - self.heat_pump * cop / HEATING_WATER
        rounded = {"cop": round(cop, 2), "supply": round(supply, 1), "return": round(back, 1)}
        return json.dumps({"power": round(self.heat_pump), **rounded})


def _switch(on: bool) -> str:
    return "on" if on else "off"
