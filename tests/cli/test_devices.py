"""The simulated devices without sockets or sleeps: messages go straight back to those who would hear them."""

import json
from collections import Counter, defaultdict
from itertools import groupby
from statistics import correlation, mean

import pytest

from smbroker.cli.devices.car import ENOUGH
from smbroker.cli.devices.controls import TARGETS, Controller, Thermostat
from smbroker.cli.devices.curves import Clock, number_heard, relative_humidity, saturation
from smbroker.cli.devices.house import House
from smbroker.cli.devices.plant import Plant
from smbroker.cli.devices.sensors import Message
from smbroker.cli.devices.wires import ENCODE
from smbroker.cli.devices.world import World
from smbroker.client import padded, typed
from smbroker.model.filter import matches, parse
from smbroker.model.message import Dialect, Kind

CLOCK = Clock()
TICK = 0.2  # seconds
DAY = 24 * 60  # real seconds of a simulated day
DIALECTS = {Dialect.SOH, Dialect.PIPE, Dialect.SEMICOLON, Dialect.PADDED, Dialect.TYPED, Dialect.MQTT}
RANGES = {  # by the end of the topic: what may be measured at all
    "bedroom/temperature": (14, 26),
    "living/temperature": (16, 26),
    "outdoor/temperature": (-5, 25),
    "humidity": (15, 99.5),
    "light": (0, 120_000),
    "wind": (0, 25),
    "outdoor/pressure": (980, 1_045),
    "power/load": (30, 9_000),
    "power/solar": (0, 5_200),
    "power/grid": (-5_200, 9_000),
    "grid/voltage": (218, 245),
    "grid/frequency": (49.8, 50.2),
    "living/heating": (0, 100),
    "power/heating": (0, 2_200),
    "tank/level": (0.1, 100),
    "flow": (0, 120),
    "main/pressure": (0.5, 6),
    "speed": (0, 1_500),
    "current": (0, 15),
    "vibration": (0, 8),
    "bearing": (5, 80),
    "turbidity": (0, 4),
    "chlorine": (0.1, 0.8),
    "well/level": (10, 19),
    "well/conductivity": (450, 600),
}


def played(world: World, seconds: float) -> list[tuple[float, Message]]:
    """What is said, and when; a broker without delay is between the devices."""
    said = []
    for number in range(int(seconds / TICK)):
        now = number * TICK
        for message in world.values(now):
            said.append((now, message))
            world.hear(Dialect.SEMICOLON, message.topic, message.text)
            world.hear(Dialect.TYPED, message.topic, message.text)
    return said


@pytest.fixture(scope="module")
def two_days() -> list[tuple[float, Message]]:
    return played(World(1, CLOCK), 2 * DAY)


@pytest.fixture(scope="module")
def series(two_days: list[tuple[float, Message]]) -> dict[str, list[tuple[float, float]]]:
    """Numbers by topic, with the simulated hour."""
    found = defaultdict(list)
    for now, message in two_days:
        if number_heard(message.text, -1e9, 1e9) is not None:
            found[message.topic].append((CLOCK.seconds(now) / 3_600, float(message.text)))
    return found


def around(points: list[tuple[float, float]], hour: float, width: float = 0.5) -> float:
    return mean(value for at, value in points if abs((at - hour + 12) % 24 - 12) < width)


def hourly(points: list[tuple[float, float]]) -> list[float]:
    by_hour = defaultdict(list)
    for at, value in points:
        by_hour[int(at)].append(value)
    return [mean(by_hour[hour]) for hour in range(7, 53)]


def test_the_same_seed_says_the_same() -> None:
    assert played(World(7, CLOCK), 60) == played(World(7, CLOCK), 60)
    assert played(World(7, CLOCK), 60) != played(World(8, CLOCK), 60)


@pytest.mark.parametrize("make", [House, Plant])
def test_what_happens_does_not_depend_on_how_often_one_looks(make: type[House] | type[Plant]) -> None:
    often, seldom = make(3, CLOCK), make(3, CLOCK)
    for number in range(301):
        often.values(number * 0.1)
    seldom.values(30.0)
    if isinstance(often, House) and isinstance(seldom, House):
        assert often.weather.temperature == seldom.weather.temperature
        assert often.rooms == seldom.rooms
        assert often.car.soc == seldom.car.soc
    elif isinstance(often, Plant) and isinstance(seldom, Plant):
        assert (often.level, often.pressure, often.pumps) == (seldom.level, seldom.pressure, seldom.pumps)
        assert often.well == seldom.well


def test_every_dialect_is_spoken_at_a_pleasant_rate(two_days: list[tuple[float, Message]]) -> None:
    count = Counter(message.dialect for _, message in two_days)
    assert count.keys() == DIALECTS
    assert 20 <= len(two_days) / (2 * DAY) <= 50
    assert all(number / (2 * DAY) > 0.5 for number in count.values())


def test_messages_do_not_come_in_bursts(two_days: list[tuple[float, Message]]) -> None:
    assert max(Counter(int(now) for now, _ in two_days).values()) < 60


def test_every_message_can_be_said_in_every_dialect(two_days: list[tuple[float, Message]]) -> None:
    for message in {message.topic: message for _, message in two_days}.values():
        topic, text = message.topic.encode(), message.text.encode()
        for encode in ENCODE.values():
            encode(topic, text)
        padded.encode_publish(topic, text)
        typed.encode_publish(topic, text, Kind.STRING)


def test_typed_devices_say_numbers_as_what_they_are(two_days: list[tuple[float, Message]]) -> None:
    kinds = set()
    for _, message in two_days:
        if message.dialect is Dialect.TYPED:
            typed.encode_publish(message.topic.encode(), message.text.encode(), message.kind)
            kinds.add(message.kind)
    assert kinds == {Kind.INT, Kind.SHORT_REAL, Kind.FLOAT}


def test_topics_are_known_beforehand(two_days: list[tuple[float, Message]]) -> None:
    world = World(1, CLOCK)
    assert {message.topic for _, message in two_days} <= world.topics
    assert {(message.device, message.dialect) for _, message in two_days} <= world.devices


def test_the_pipeline_of_rooms_has_the_rooms_and_what_is_outdoors() -> None:
    pattern = parse("house/+/temperature")
    found = [topic for topic in World(1, CLOCK).topics if matches(pattern, topic.encode())]
    assert sorted(found) == sorted(f"house/{room}/temperature" for room in [*TARGETS, "outdoor"])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_values_are_possible(seed: int) -> None:
    for _, message in played(World(seed, CLOCK), DAY / 2):
        for end, (lowest, highest) in RANGES.items():
            if message.topic.endswith(end) and "plant/alarm" not in message.topic:
                assert lowest <= float(message.text) <= highest, message


def test_the_day_shows_in_the_house(series: dict[str, list[tuple[float, float]]]) -> None:
    assert around(series["house/outdoor/light"], 13) > 1_000
    assert around(series["house/outdoor/light"], 2) < 2
    assert around(series["house/outdoor/temperature"], 15) > around(series["house/outdoor/temperature"], 4) + 2
    assert around(series["house/living/temperature"], 21) == pytest.approx(TARGETS["living"][0], abs=0.6)
    assert around(series["house/living/temperature"], 5) == pytest.approx(TARGETS["living"][1], abs=0.8)
    assert around(series["house/bath/humidity"], 7, 0.3) > around(series["house/bath/humidity"], 15) + 5  # the shower


def test_what_belongs_together_goes_together(series: dict[str, list[tuple[float, float]]]) -> None:
    light, solar = hourly(series["house/outdoor/light"]), hourly(series["house/power/solar"])
    load, grid = hourly(series["house/power/load"]), hourly(series["house/power/grid"])
    flow, pressure = hourly(series["plant/outlet/flow"]), hourly(series["plant/main/pressure"])
    speed, current = hourly(series["plant/pump1/speed"]), hourly(series["plant/pump1/current"])
    inflow, well = hourly(series["plant/inlet/flow"]), hourly(series["plant/well/level"])
    assert correlation(light, solar) > 0.99
    assert [one - two for one, two in zip(load, solar, strict=True)] == pytest.approx(
        grid, abs=75
    )  # read at moments of their own
    assert correlation(flow, pressure) < -0.6
    assert correlation(speed, current) > 0.95
    assert correlation(inflow, well) < -0.8
    assert correlation(well, hourly(series["plant/well/conductivity"])) < -0.95
    energy = [value for _, value in series["house/power/energy"]]
    assert energy == sorted(energy)
    used = energy[-1] - energy[0]  # kWh in some two days
    assert used == pytest.approx(mean(load) * 48 / 1_000, rel=0.05)


def test_the_town_drinks_most_in_the_morning_and_in_the_evening(series: dict[str, list[tuple[float, float]]]) -> None:
    flow = series["plant/outlet/flow"]
    assert min(around(flow, 7.2), around(flow, 19)) > 2 * around(flow, 3)


def test_doors_and_alarms_speak_when_something_happens(two_days: list[tuple[float, Message]]) -> None:
    door = [message.text for _, message in two_days if message.topic == "house/hall/door"]
    assert door.count("open") >= 4
    assert set(door) == {"open", "closed"}
    alarms = [message.text for _, message in two_days if message.topic.startswith("plant/alarm/")]
    assert 1 <= len(alarms) < 40
    assert '"state": "raised"' in alarms[0]


def documents(said: list[tuple[float, Message]], topic: str) -> list[tuple[float, dict[str, float | str | None]]]:
    return [(CLOCK.seconds(now) / 3_600 % 24, json.loads(text)) for now, (_, _, name, text, _) in said if name == topic]


def test_the_car_is_charged_at_home_and_drives_by_day(two_days: list[tuple[float, Message]]) -> None:
    said = documents(two_days, "house/garage/charger")
    states = [state for state, _ in groupby(document["state"] for _, document in said)]
    assert states == ["charging", *["unplugged", "charging", "done"] * 2]
    for hour, document in said:
        soc, power, charging = document["soc"], document["power"], document["state"] == "charging"
        assert isinstance(power, int)
        assert 3_400 < power < 3_900 if charging else power == 0
        assert (document["state"] == "unplugged") == (soc is None)
        assert soc is None or 20 < float(soc) <= ENOUGH
        assert not charging or not 9 < hour < 17
    first, last = said[0][1]["soc"], [document["soc"] for hour, document in said if 7 < hour < 7.9][-1]
    assert float(str(last)) > float(str(first))
    opened = [CLOCK.seconds(now) / 3_600 % 24 for now, message in two_days if message.text == "open"]
    assert {round(hour) for hour in opened} >= {8, 17}


def test_the_charger_obeys_and_the_house_draws_less() -> None:
    house, paused = House(1, CLOCK), House(1, CLOCK)
    paused.hear("house/garage/charging", "off")
    for each in (house, paused):
        each.values(10)
    assert (house.car.state, paused.car.state) == ("charging", "paused")
    assert house.load - paused.load == pytest.approx(house.car.power)
    assert house.car.soc > paused.car.soc
    paused.hear("house/garage/charging", "on")
    paused.values(20)
    assert paused.car.state == "charging"


def test_a_paused_charger_charges_after_the_next_trip() -> None:
    house = House(1, CLOCK)
    house.hear("house/garage/charging", "off")
    house.values(12 * 60)  # six in the evening
    assert house.car.state == "charging"


def test_the_heat_pump_and_the_meter_agree(two_days: list[tuple[float, Message]]) -> None:
    house = House(1, CLOCK)
    pump = documents([(now, each) for now in range(300) for each in house.values(now)], "house/cellar/heat_pump")[-1][1]
    assert pump["power"] == pytest.approx(house.heat_pump, abs=20)
    for _, document in documents(two_days, "house/cellar/heat_pump"):
        power, cop, supply, back = (float(str(document[name])) for name in ("power", "cop", "supply", "return"))
        assert 2 < cop < 8 if power >= 1 else cop < 8
        assert 20 < back <= supply < 40
        assert supply - back == pytest.approx(power * cop / 1_160, abs=0.2)


def test_the_radiator_obeys_and_the_room_gets_warm() -> None:
    warm, cold = House(1, CLOCK), House(1, CLOCK)
    warm.hear("house/living/heating", "100")
    cold.hear("house/living/heating", "0")
    for house in (warm, cold):
        house.values(120)
    assert warm.rooms["living"].temperature > cold.rooms["living"].temperature + 2


@pytest.mark.parametrize("text", ["", "warm", "nan", "inf", "1e400", "\ud800", "9" * 400])
def test_nonsense_is_not_obeyed(text: str) -> None:
    world = World(1, CLOCK)
    rooms = ("house/living/heating", "house/living/target", "house/attic/target", "house/garage/charging")
    for topic in (*rooms, "plant/pump1/command", "x", ""):
        world.hear(Dialect.SEMICOLON, topic, text)
        world.hear(Dialect.TYPED, topic, text)
    world.values(1)
    assert 0 <= world.house.rooms["living"].heating <= 100
    assert 5 <= world.thermostat.setpoints["living"] <= 30
    assert world.thermostat.setpoints.keys() == TARGETS.keys()
    assert world.house.car.state == "charging"


def said(messages: list[Message], topic: str) -> list[str]:
    return [message.text for message in messages if message.topic == topic]


def test_the_thermostat_heats_what_is_too_cold() -> None:
    thermostat = Thermostat(1, CLOCK)
    assert said(thermostat.values(4), "house/living/heating") == []  # it has not heard how warm it is
    thermostat.hear("house/living/temperature", "20.90")
    [holding] = said(thermostat.values(8), "house/living/heating")
    thermostat.hear("house/living/target", "24")
    assert said(thermostat.values(8), "house/living/setpoint") == ["24.0"]
    assert said(thermostat.values(12), "house/living/heating") == ["100"]
    thermostat.hear("house/living/temperature", "26")
    assert said(thermostat.values(16), "house/living/heating") == ["0"]
    assert 20 < float(holding) < 60


def test_a_target_holds_until_day_and_night_change() -> None:
    thermostat = Thermostat(1, CLOCK)
    thermostat.hear("house/living/target", "24")
    thermostat.values(15 * 60)  # nine in the evening
    assert thermostat.setpoints["living"] == 24
    thermostat.values(16.5 * 60)
    assert thermostat.setpoints["living"] == TARGETS["living"][1]


def test_the_controller_fills_the_tank_with_one_pump_after_the_other() -> None:
    controller = Controller()

    def commands(level: str) -> list[tuple[str, str]]:
        controller.hear("plant/tank/level", level)
        return [(message.topic, message.text) for message in controller.values(0)]

    assert commands("60") == []
    assert commands("49") == [("plant/pump1/command", "on")]
    assert commands("48") == []
    assert commands("29") == [("plant/pump2/command", "on")]
    assert commands("86") == [("plant/pump1/command", "off"), ("plant/pump2/command", "off")]
    assert commands("49") == [("plant/pump2/command", "on")]
    controller.hear("plant/pump2/command", "off")  # by hand
    assert commands("60") == []
    assert commands("49") == [("plant/pump1/command", "on")]


def test_a_pump_that_is_switched_off_stands_still() -> None:
    plant = Plant(1, CLOCK)
    plant.hear("plant/pump1/command", "on")
    plant.values(5)
    assert plant.inflow > 30
    plant.hear("plant/pump1/command", "off")
    plant.values(10)
    assert plant.inflow < 0.1


def test_air_takes_more_water_when_warm() -> None:
    assert saturation(20) == pytest.approx(17.3, abs=0.1)
    assert relative_humidity(saturation(20), 20) == 99.5
    assert relative_humidity(saturation(5), 20) == pytest.approx(39.3, abs=0.5)
