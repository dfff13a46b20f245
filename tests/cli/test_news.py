"""What the demo shows: the guide's commands, the summary, happenings; on a terminal and elsewhere."""

import shlex

import pytest

from smbroker.cli.devices.curves import Clock
from smbroker.cli.devices.guide import WATCH, guide
from smbroker.cli.devices.news import MOST_LINES, News, Screen
from smbroker.cli.devices.order import Listener, Order, order_of
from smbroker.cli.devices.world import World
from smbroker.client.address import Address
from smbroker.model.filter import matches, parse
from smbroker.model.message import Dialect

KNOWN = {"house/living/temperature", "house/hall/door", "plant/alarm/burst"}
USUAL = [
    Listener("udp", "127.0.0.1", 8080),
    Listener("padded", "127.0.0.1", 1379),
    Listener("typed", "127.0.0.1", 12345),
    Listener("mqtt", "127.0.0.1", 1883),
]


def order(listening: list[Listener], programs: str = "") -> Order:
    return Order(listening, programs, quiet=False, seed=1, speed=60)


def guided(listening: list[Listener], programs: str = "", speed: float = 60) -> list[str]:
    return guide(order(listening).addresses, 27, programs, speed).splitlines()


def commands(lines: list[str], program: str) -> list[str]:
    return [line[13:] for line in lines if program in line]


def news() -> News:
    return News(Clock(), KNOWN)


def test_the_order_arrives_as_it_was_given() -> None:
    given = order(USUAL, ".venv/bin/")
    assert given.line().endswith(b"\n")
    assert order_of(given.line()) == given


def test_each_dialect_is_where_its_listener_is() -> None:
    found = order([Listener("tcp", "0.0.0.0", 1), Listener("udp", "::", 2), Listener("web", "::1", 3)]).addresses
    here = Address("::1", 2)
    assert found == {
        Dialect.PADDED: Address("127.0.0.1", 1),
        Dialect.MQTT: Address("127.0.0.1", 1),
        Dialect.SOH: here,
        Dialect.PIPE: here,
        Dialect.SEMICOLON: here,
    }


def test_the_guide_has_a_line_per_dialect_to_watch_and_to_join_in() -> None:
    lines = guided(USUAL, ".venv/bin/")
    assert commands(lines, "smbsubscribe")[0] == ".venv/bin/smbsubscribe 'house/#'"
    assert commands(lines, "smbpublish")[0] == ".venv/bin/smbpublish house/living/target 24"
    for program in ("smbsubscribe", "smbpublish"):
        named = [line.split()[0] for line in lines if program in line]
        assert named == ["semicolon", "soh", "pipe", "padded", "typed", "mqtt"]
    assert commands(lines, "smbpublish")[-1] == ".venv/bin/smbpublish --dialect mqtt house/garage/charging off"
    assert lines[1].endswith("27 devices in 6 dialects.")
    assert max(map(len, lines)) < 100


@pytest.mark.parametrize("dialect", WATCH)
def test_there_is_something_to_watch(dialect: Dialect) -> None:
    topics = [topic.encode() for topic in World(1, Clock()).topics]
    for word in shlex.split(WATCH[dialect]):
        assert "/" not in word or any(matches(parse(word), topic) for topic in topics), word


def test_the_guide_names_ports_and_hosts_that_are_not_the_usual_ones() -> None:
    lines = guided([Listener("semicolon", "10.0.0.5", 9000)])
    assert commands(lines, "smbpublish") == ["smbpublish -h 10.0.0.5 -p 9000 house/living/target 24"]
    assert "No listener for typed: its devices stay silent." in lines


def test_a_folder_with_a_space_is_quoted() -> None:
    assert commands(guided(USUAL, "my tools/"), "smbpublish")[0].startswith("'my tools/smbpublish' ")


def test_the_guide_names_the_page_where_there_is_one() -> None:
    lines = guide(order(USUAL).addresses, 27, "", 60, "http://127.0.0.1:8090").splitlines()
    assert "See it all in a browser: http://127.0.0.1:8090/" in lines
    assert not any("browser" in line for line in guided(USUAL))


def test_the_guide_says_how_fast_time_runs() -> None:
    assert "a day takes 24 minutes" in guided(USUAL)[2]
    assert "a day takes 12 hours" in guided(USUAL, speed=2)[2]
    assert "runs as ours" in guided(USUAL, speed=1)[2]


def test_the_summary_counts_and_shows_the_latest() -> None:
    told = news()
    for number in range(100):
        told.take("house/living/temperature", f"20.{number:02}")
    assert told.summary(4.0) == "06:04 · 25 messages/s · 100 so far · living 20.99 °C"
    assert told.summary(9.5).startswith("06:09 · 0 messages/s · 100 so far")


def test_what_strangers_say_and_what_changes_is_worth_a_line() -> None:
    told = news()
    for topic, text in [
        ("house/living/temperature", "20"),
        ("house/hall/door", "closed"),
        ("house/hall/door", "open"),
        ("house/hall/door", "open"),
        ("hello/world", "good\x1b[31mmorning"),
    ]:
        told.take(topic, text)
    assert told.happenings(60) == ["07:00 · house/hall/door open", "07:00 · hello/world good\\x1b[31mmorning"]
    assert told.happenings(61) == []


def test_a_flood_is_a_few_lines() -> None:
    told = news()
    for number in range(1_000 + MOST_LINES):
        told.take(f"flood/{number}", "x" * 100_000)
    lines = told.happenings(0)
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "06:00 · … and 1,000 more"
    assert max(map(len, lines)) < 250


def test_trouble_is_told_once_and_only_if_it_lasts() -> None:
    told = news()
    for tenth in range(50):
        told.trouble(tenth / 10, "nobody listens")
    assert told.happenings(5) == ["06:05 · not taken by the broker: nobody listens"]


def test_elsewhere_than_on_a_terminal_it_is_a_line_now_and_then() -> None:
    screen = Screen(news(), None)
    written = "".join(screen.show(tenth / 10) for tenth in range(600))
    assert written.count("\n") == 4
    assert written.splitlines()[0].startswith("06:03 · ")
    assert "\x1b" not in written + screen.end()


def test_on_a_terminal_the_summary_is_drawn_anew_and_fits() -> None:
    told = news()
    screen = Screen(told, lambda: 20)
    assert screen.show(0.5) == ""
    assert screen.show(1.0) == "\x1b[J\n06:01 · 0 messages/\x1b[A\r"
    told.take("hello/world", "good morning")
    assert screen.show(1.1) == "\x1b[J06:01 · hello/world good morning\n\n06:01 · 0 messages/\x1b[A\r"
    assert screen.end() == "\r\x1b[J"


def test_a_terminal_that_is_not_ours_is_left_alone() -> None:
    screen = Screen(news(), lambda: 0)
    assert "".join(screen.show(second) for second in range(10)) + screen.end() == ""
