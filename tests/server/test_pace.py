"""How fast and how slowly connections may send."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from smbroker.server.mqtt.connection import MqttConnection
from smbroker.server.pace import PROGRESS, Pace, StallWatch
from smbroker.server.tcp import Connection


def test_a_pace_lets_a_second_s_worth_come_at_once_and_then_makes_wait() -> None:
    pace = Pace(1_000, 0.0)
    assert pace.wait(1_000, 0.0) == 0
    assert pace.wait(500, 0.0) == 0.5
    assert pace.wait(100, 1.0) == 0
    assert pace.wait(1_000, 100.0) == 0  # a long silence is worth a second


class Sender:
    def __init__(self) -> None:
        self.received = 0
        self.unfinished = 0
        self.ended = False

    def stalled(self) -> None:
        self.ended = True


def test_unfinished_input_that_does_not_go_on_ends_its_connection() -> None:
    idle, busy, slow, trickle = senders = [Sender() for _ in range(4)]
    watch = StallWatch(None, senders, 0)  # type: ignore[arg-type]
    watch._timeout = 60
    for second in range(0, 200, 15):
        busy.unfinished = busy.unfinished + 7
        busy.received += 10_000
        slow.unfinished = 10
        slow.received += PROGRESS // 3  # a little more than PROGRESS in a minute
        trickle.unfinished = 1
        trickle.received += 1
        watch.look(float(second))
        assert trickle.ended == (second >= 60)
    assert [one.ended for one in (idle, busy, slow)] == [False] * 3


def test_what_is_finished_begins_anew() -> None:
    sender = Sender()
    watch = StallWatch(None, [sender], 0)  # type: ignore[arg-type]
    watch._timeout = 60
    for second in range(0, 600, 30):
        sender.unfinished = int(second % 60 == 0)
        watch.look(float(second))
    assert not sender.ended


@pytest.mark.parametrize("kind", [Connection, MqttConnection])
def test_who_has_waited_for_its_pace_waits_for_the_log_too(kind: Any) -> None:
    reading: list[str] = []
    waiting: list[Callable[[], None]] = []
    turn = SimpleNamespace(behind=True, commits=SimpleNamespace(when_caught_up=waiting.append))
    one = kind.__new__(kind)
    one._transport = SimpleNamespace(is_closing=lambda: False, resume_reading=lambda: reading.append("again"))
    shared = SimpleNamespace(stopping=False, turn=turn)
    one._pace = None
    if kind is MqttConnection:
        one.shared, one.turn, one._clock = shared, turn, lambda: 1.0
        resume = one.resume_reading
    else:
        one._shared, one._keep_alive = shared, None
        resume = one._resume_reading
    resume()
    assert not reading
    turn.behind = False
    for caught_up in waiting:
        caught_up()
    assert reading == ["again"]
    shared.stopping = True
    resume()
    assert reading == ["again"], "a broker that stops reads nothing more"
