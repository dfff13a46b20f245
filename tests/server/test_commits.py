"""How messages gather on their way to the log: by hand, with a real log and the broker's own turn."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
import uvloop

from log.logkit import texts_of
from server.passing import pass_time
from smbroker.core.delivery import Delivery
from smbroker.log import writer as writer_module
from smbroker.log.log import Log
from smbroker.model.errors import LogError
from smbroker.model.message import Columns, Dialect, Extra, Kind, Origin
from smbroker.model.stats import Stats
from smbroker.server import commits as commits_module
from smbroker.server.commits import BESIDE, ENOUGH_BYTES, FEW, SMALL_ROWS, SOON, STILL, Commits
from smbroker.server.console import Console

LINGER = 0.2
ORIGIN = Origin(Dialect.MQTT, "127.0.0.1", 1)


class House:
    def __init__(self, directory: Path, linger: float = LINGER) -> None:
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
            linger=linger,
            recent_bytes=1 << 20,
        )

    def keep(self, *texts: str) -> None:
        for text in texts:
            self.commits.keep(b"t", text.encode(), ORIGIN)

    def turn(self, *texts: str) -> None:
        payloads = [text.encode() for text in texts]
        count = len(payloads)
        self.commits.submit(Columns(1, [b"t"] * count, payloads, [Kind.BYTES] * count, [ORIGIN] * count), ())

    @property
    def waiting(self) -> int:
        return sum(len(columns) for columns, *_ in self.commits._gathered)

    def close(self) -> None:
        self.commits.hand_over()
        self.commits.close()
        self.loop.close()


def commit_that_rests(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one message, `a`; the writing thread is in the middle of it, and stays there."""
    monkeypatch.setattr(writer_module, "REST", 600.0)
    house.keep("a")
    house.commits.hand_over()
    deadline = monotonic() + 60
    while not house.commits._writer.rests:
        assert monotonic() < deadline
        sleep(0.0005)


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


def test_many_do_not_gather_for_the_whole_time(house: House) -> None:
    texts = [str(number) for number in range(2 * FEW)]
    house.keep(*texts[:FEW])
    house.turn("x")
    assert house.waiting == FEW + 1, "so soon more may come"
    pass_time(house.loop, SOON + 0.05)
    assert house.waiting == 0
    house.keep("y")
    pass_time(house.loop, SOON + 0.05)
    assert house.waiting == 0, "after many it is not long either"
    house.keep("z")
    pass_time(house.loop, SOON + 0.05)
    assert house.waiting == 1
    house.turn(*texts[FEW:])
    pass_time(house.loop, 0.01)
    assert house.waiting == 0
    house.close()
    assert texts_of(house.log) == [*texts[:FEW], "x", "y", "z", *texts[FEW:]]


@pytest.mark.parametrize("way", ["alone", "turn"])
def test_what_has_gathered_long_enough_is_handed_over_when_a_message_has_just_left(
    house: House, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(commits_module, "RIPE", 60.0)
    house.keep("a")
    pass_time(house.loop, LINGER + 0.05)
    assert house.waiting == 1  # nothing has left since then
    if way == "alone":
        house.keep("b")
    else:
        house.turn("b")
        house.commits.gap()  # as at the end of the turn
    assert house.waiting == 0
    house.close()
    assert texts_of(house.log) == ["a", "b"]


def test_what_has_gathered_long_enough_is_handed_over_if_nothing_more_comes(house: House) -> None:
    house.keep("a")
    pass_time(house.loop, LINGER + 0.05)
    assert house.waiting == 0
    house.close()
    assert texts_of(house.log) == ["a"]


def test_who_waits_for_all_that_came_before_ends_the_rest_of_the_writing_thread(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_that_rests(house, monkeypatch)
    told: list[str] = []
    house.commits.after(lambda: told.append("all is there"))
    deadline = monotonic() + 60
    while not told:
        assert monotonic() < deadline
        pass_time(house.loop, 0.01)
    house.close()


def test_what_comes_while_the_writing_thread_rests_has_a_time_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_that_rests(house, monkeypatch)
    house.keep("b")
    pass_time(house.loop, LINGER + 0.05)
    assert house.waiting == 0
    house.close()
    assert texts_of(house.log) == ["a", "b"]


@pytest.mark.parametrize("linger", [0.0, 0.02])
def test_many_do_not_gather_for_longer_than_few(tmp_path: Path, linger: float) -> None:
    house = House(tmp_path, linger)
    house.keep(*["x"] * FEW)
    pass_time(house.loop, linger + 0.05)
    assert house.waiting == 0
    house.close()
    house.log.close()


@pytest.mark.parametrize("long", ["properties", "client"])
def test_what_is_long_besides_payloads_counts(house: House, long: str) -> None:
    """Before it is handed over, and in what is kept in memory."""
    extras, origin = {0: Extra(0, False, (("k", "v" * 60_000),))}, ORIGIN
    if long == "client":
        extras, origin = {}, Origin(Dialect.MQTT, "127.0.0.1", 1, "c" * 60_000)
    waiting = []
    for _ in range(300):
        house.commits.submit(Columns(1, [b"t"], [b""], [Kind.BYTES], [origin], dict(extras)), ())
        waiting.append(house.waiting)
    assert max(waiting) * 60_000 < 2 * ENOUGH_BYTES
    house.commits.hand_over()
    recent = house.commits.recent
    deadline = house.loop.time() + 30
    while recent.next < 300 and house.loop.time() < deadline:
        pass_time(house.loop, 0.01)
    assert recent.next == 300
    assert (recent.next - recent.first) * 60_000 <= 2 << 20
    house.close()


def test_what_gathers_is_counted_as_it_comes() -> None:
    """As it would be all at once: at its end the loop has no time for that."""
    client = Origin(Dialect.MQTT, "127.0.0.1", 1, "clïent")
    extras = {1: Extra(0, False, (("k", "v"),))}
    gathered = Columns()
    gathered.add(b"topic", b"payload", ORIGIN, 5)
    gathered.gather(Columns(1, [b"a", b"bb"], [b"1", b"22"], [Kind.BYTES] * 2, [client, client], dict(extras)))
    gathered.add(b"t", b"p", client, 6)
    lists = gathered.topics, list(gathered.payloads), gathered.kinds, gathered.origins
    at_once = Columns(1, *lists, dict(gathered.extras))
    assert (gathered.bytes, gathered.volume) == (at_once.bytes, at_once.volume)


def test_while_many_come_some_are_enough_to_go_on_so(house: House) -> None:
    counts = [FEW, FEW // STILL, FEW // STILL, FEW // STILL - 1]
    waits = []
    for count in counts:
        house.keep(*["x"] * count)
        pass_time(house.loop, SOON + 0.05)
        assert house.waiting == 0
        waits.append(house.commits.linger)
    assert waits == [SOON, SOON, SOON, LINGER]
    house.close()


def test_after_much_what_follows_does_not_gather_for_long(house: House) -> None:
    house.turn("x" * ENOUGH_BYTES)
    assert house.waiting == 0
    assert house.commits.linger == SOON
    house.keep("y")
    pass_time(house.loop, SOON + 0.05)
    assert house.waiting == 0
    assert house.commits.linger == LINGER
    house.close()


@pytest.mark.parametrize(
    ("streams", "pipelines", "wait"), [(0, False, LINGER), (0, True, BESIDE), (1, False, SOON), (2, True, SOON)]
)
def test_few_gather_until_it_is_time_which_is_sooner_if_someone_reads(
    house: House, streams: int, pipelines: bool, wait: float
) -> None:
    house.commits.read_by(streams=streams, pipelines=pipelines)
    assert house.commits.linger == wait
    house.keep("a")
    pass_time(house.loop, wait + 0.02)
    assert house.waiting == 0
    house.close()
    assert texts_of(house.log) == ["a"]


def test_a_reader_who_is_new_does_not_wait_for_what_has_gathered(house: House) -> None:
    for readers in ({"pipelines": True}, {"streams": 1}):
        house.keep("a")
        house.commits.read_by(**readers)
        assert house.waiting == 0
    house.keep("b")
    house.commits.read_by(streams=2)
    house.commits.read_by(streams=0, pipelines=False)
    assert house.waiting == 1, "these were there already, and nobody is new"
    house.close()
    assert texts_of(house.log) == ["a", "a", "b"]


def test_while_the_log_takes_none_they_are_counted(house: House) -> None:
    house.commits.failed = LogError("disk", "full")
    house.keep("a", "b")
    assert house.commits.stats.not_logged == 2
    house.commits.failed = None
    house.keep("c")
    house.close()
    assert texts_of(house.log) == ["c"]
