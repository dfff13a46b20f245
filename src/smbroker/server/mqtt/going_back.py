"""`smb-replay`: a subscription that begins with history. Where that begins is `all`, `from=OFFSET`, `since=ISO TIME`
or `last=N`; the log is asked for the last two.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from smbroker.dialects.mqtt import Malformed
from smbroker.dialects.mqtt.reasons import IMPLEMENTATION
from smbroker.log.questions import Backwards, Failed, Moment, Place
from smbroker.server.commits import Commits
from smbroker.server.history import History
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.mqtt.subscriptions import Subscription

if TYPE_CHECKING:
    from smbroker.server.mqtt.service import Mqtt


def check(service: "Mqtt", session: MqttSession, one: Subscription, wanted: str) -> None:
    """Raises Malformed: there is no such history, so the subscription is not made; one before it stays."""
    _start(wanted, session, one, *_sources(service, one))


def go_back(service: "Mqtt", session: MqttSession, one: Subscription, wanted: str) -> None:
    """The history of a subscription, before what is new. It was checked."""
    commits, history = _sources(service, one)
    start = _start(wanted, session, one, commits, history)
    replay = session.replay or service.keep(session)
    if isinstance(start, int):
        replay.go_back(one, start, commits.recent.next)
        return
    question, pending, seam = start, replay.hold(one), 0

    def placed(asked: Moment | Backwards, answer: Place | Failed) -> None:
        held = replay.held(one, pending) if session.replay is replay else None
        if held is None:
            replay.let_go()
        elif isinstance(asked, Backwards) and isinstance(answer, Place) and (following := asked.after(answer)):
            ask(replace(following, permit=session.grant.replay()))
        else:
            replay.go_back(held, answer.offset if isinstance(answer, Place) else answer.next, seam)
            replay.let_go()

    def ask(what: Moment | Backwards) -> None:
        history.ask(what, partial(placed, what))

    def begin() -> None:
        nonlocal seam
        seam = commits.recent.next
        ask(question())

    commits.after(begin)  # what came before the subscription counts


def _sources(service: "Mqtt", one: Subscription) -> tuple[Commits, History]:
    commits, history = service.turn.commits, service.history
    if one.share or commits is None or history is None:
        text = "there is no history without the log" if not one.share else "a shared subscription has no history"
        raise Malformed("mqtt_replay", text, IMPLEMENTATION)
    return commits, history


def _start(
    wanted: str, session: MqttSession, one: Subscription, commits: Commits, history: History
) -> int | Callable[[], Moment | Backwards]:
    """The offset, or what makes the question that tells it."""
    word, _, value = wanted.partition("=")
    first, reading = commits.first_offset, history.new_reading()
    try:
        if word == "all" and not value:
            return first
        if word == "from":
            return max(int(value), first)
        if word == "last" and (most := int(value)) > 0:
            return lambda: Backwards.first_step(
                reading, commits.first_offset, commits.recent.next, one.pattern, most, session.grant.replay()
            )
        if word == "since":
            when = datetime.fromisoformat(value)
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            ts = round(when.timestamp() * 1e6)
            return lambda: Moment(reading, ts)
        raise ValueError(wanted)
    except ValueError as error:
        text = f"smb-replay is all, from=OFFSET, since=TIME or last=N, not {wanted}"
        raise Malformed("mqtt_replay", text, IMPLEMENTATION) from error
