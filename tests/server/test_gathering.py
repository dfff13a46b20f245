"""When the loop rests after a turn: only while it is busy, and only while that brings more messages."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from server.turns import FRAME, House
from smbroker.model.message import Dialect
from smbroker.server import turn as turns
from smbroker.server.gathering import AGAIN, BUSY, LOOK, MOST_PATIENCE, PATIENCE, REST, SMALL_READ, WINDOW, Gathering

READS = 2 * LOOK


class Load:
    """What a broker goes through, window by window."""

    def __init__(self) -> None:
        self.time = self.used = 0.0
        self.messages = 0
        self.gathering = Gathering(lambda: self.time, lambda: self.used)

    def window(self, messages: int, busy: float = 1.0, reads: int = READS, seconds: float = 1.01 * WINDOW) -> bool:
        """Whether the loop rests afterwards."""
        self.time += seconds
        self.used += busy * seconds
        self.messages += messages
        if self.gathering.due(reads):
            self.gathering.judge(self.messages)
        return self.gathering.on


def test_it_is_tried_by_a_busy_loop_and_kept_while_it_brings_more() -> None:
    load = Load()
    assert load.window(1_000)
    assert all(load.window(2_000) for _ in range(10))
    assert load.window(1_000, busy=0.1)
    assert not load.window(700), "fewer than without"


def test_it_is_kept_as_well_if_as_many_come_with_less_work() -> None:
    load = Load()
    assert load.window(1_000)
    assert load.window(1_000, busy=0.5)


def test_it_has_to_show_again_that_it_pays() -> None:
    load = Load()
    load.window(1_000)
    while load.window(2_000) and load.time < 2 * AGAIN:
        pass
    assert load.time == pytest.approx(AGAIN, abs=4 * WINDOW)
    assert load.window(1_900), "it is tried at once …"
    assert not load.window(1_900), "… and brings nothing any more"


def test_a_loop_with_time_to_spare_does_not_rest() -> None:
    load = Load()
    assert not any(load.window(1_000, busy=BUSY - 0.1) for _ in range(10))


def test_nor_does_one_whose_reads_have_many_messages_anyway() -> None:
    load = Load()
    assert not load.window((SMALL_READ + 1) * READS)
    assert load.window(SMALL_READ * READS)


def test_it_ends_at_once_when_the_load_ends() -> None:
    load = Load()
    load.window(1_000)
    assert load.window(2_000)
    assert not load.window(1, reads=1, seconds=5.0)


@pytest.mark.parametrize("gain", [1_000, 1_100], ids=["nothing", "hardly anything"])
def test_what_brings_nothing_is_tried_ever_less_often(gain: int) -> None:
    load = Load()
    trials: list[float] = []
    while load.time < 10 * MOST_PATIENCE:
        if load.window(gain if load.gathering.on else 1_000):
            trials.append(load.time)
    gaps = [later - earlier for earlier, later in pairwise(trials)]
    assert gaps[0] == pytest.approx(PATIENCE, abs=3 * WINDOW)
    assert gaps[1] == pytest.approx(2 * PATIENCE, abs=3 * WINDOW)
    assert gaps[-1] == pytest.approx(MOST_PATIENCE, abs=3 * WINDOW)
    assert max(gaps) <= MOST_PATIENCE + 3 * WINDOW


def test_few_reads_are_no_reason_to_ask_for_the_time() -> None:
    def clock() -> float:
        asked.append(1)
        return 0.0

    asked: list[int] = []
    gathering = Gathering(clock, lambda: 0.0)
    asked.clear()
    assert not gathering.due(LOOK - 1)
    assert not asked


# --- in the turn ---


class Busy(House):
    """A turn that is always busy, by a clock of its own, and notes when it rests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.time = 0.0
        self.rests: list[float] = []
        self.turn._gathering = Gathering(lambda: self.time, lambda: self.time)
        monkeypatch.setattr(turns.time, "sleep", self.rests.append)

    def flood(self) -> None:
        """Until it is tried."""
        while not self.turn._gathering.on:
            for _ in range(LOOK):
                self.read()
            self.time += WINDOW


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    made = Busy(monkeypatch)
    yield made
    made.loop.close()


def test_turns_that_have_read_rest_while_it_is_tried_and_no_others(busy: Busy) -> None:
    busy.read()
    assert busy.rests == []
    busy.flood()
    before = len(busy.rests)
    busy.read()
    assert busy.rests[before:] == [REST]
    busy.turn.begin()
    busy.turn.end()
    assert len(busy.rests) == before + 1, "others, and acknowledgements, do not wait"


def test_while_it_is_tried_there_are_no_lanes(busy: Busy) -> None:
    busy.subscriber()
    busy.read()
    lane = busy.lane()
    assert lane
    assert lane.take(FRAME)
    busy.flood()
    assert not lane.take(FRAME)


def test_what_left_by_lanes_and_what_others_sent_counts(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    busy.subscriber()
    busy.read()
    lane = busy.lane()
    assert lane
    seen: list[int] = []
    monkeypatch.setattr(Gathering, "judge", lambda _, messages: seen.append(messages))
    assert all(lane.take(FRAME) for _ in range(LOOK))
    busy.turn.stats.received[Dialect.SEMICOLON] += 1_000
    busy.time += WINDOW
    busy.read()
    assert seen == [1_000 + LOOK]
