"""How messages gather on their way to the log: by hand, with a real log and the broker's own turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from log.logkit import texts_of
from smbroker.core.delivery import Delivery
from smbroker.log.log import Log
from smbroker.model.errors import LogError
from smbroker.model.message import Columns, Dialect, Kind, Origin
from smbroker.model.stats import Stats
from smbroker.server.commits import FEW, SMALL_ROWS, Commits
from smbroker.server.console import Console

ORIGIN = Origin(Dialect.MQTT, "127.0.0.1", 1)


class House:
    def __init__(self, directory: Path) -> None:
        self.loop = uvloop.new_event_loop()
        self.log = Log.open(directory)
        stats = Stats()
        self.commits = Commits(
            self.loop,
            self.log,
            stats,
            Console(self.loop.time),
            feed=Delivery({}, stats, lambda: None),
            release=lambda _: None,
            refuse=lambda *_: None,
            recent_bytes=1 << 20,
        )

    def keep(self, *texts: str) -> None:
        for text in texts:
            self.commits.keep(b"t", text.encode(), ORIGIN)

    def turn(self, *texts: str) -> None:
        payloads = [text.encode() for text in texts]
        count = len(payloads)
        self.commits.submit(Columns(1, [b"t"] * count, payloads, [Kind.BYTES] * count, [ORIGIN] * count), ())

    def close(self) -> None:
        self.commits.hand_over()
        self.commits.close()
        self.loop.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.log.close()


def test_what_came_alone_and_small_turns_gather_in_order_as_one(house: House) -> None:
    house.keep("a", "b")
    house.turn("c")
    house.keep("d")
    (gathered,) = house.commits._gathered
    assert len(gathered[0]) == 4
    assert gathered[0].bytes == 4
    house.close()
    assert texts_of(house.log) == ["a", "b", "c", "d"]


def test_a_large_turn_comes_between(house: House) -> None:
    large = [str(number) for number in range(SMALL_ROWS + 1)]
    house.keep("a")
    house.turn(*large)
    house.keep("b")
    house.close()
    assert texts_of(house.log) == ["a", *large, "b"]


def test_they_need_not_gather_any_longer_than_is_easy_to_lay_out(house: House) -> None:
    texts = [str(number) for number in range(FEW + 1)]
    house.keep(*texts)
    assert [len(columns) for columns, *_ in house.commits._gathered] == [1]
    house.close()
    assert texts_of(house.log) == texts


def test_while_the_log_takes_none_they_are_counted(house: House) -> None:
    house.commits.failed = LogError("disk", "full")
    house.keep("a", "b")
    assert house.commits.stats.not_logged == 2
    house.commits.failed = None
    house.keep("c")
    house.close()
    assert texts_of(house.log) == ["c"]
