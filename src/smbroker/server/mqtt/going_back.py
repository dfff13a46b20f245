"""`smb-replay`: a subscription that begins with history. Where that begins is `all`, `from=OFFSET`, `since=ISO TIME`
or `last=N`; the log is asked for the last two.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from smbroker.dialects.mqtt import Malformed
from smbroker.dialects.mqtt.reasons import IMPLEMENTATION
from smbroker.log.questions import Backwards, Failed, Moment, Place
from smbroker.model.filter import Filter
from smbroker.model.rights import Permit
from smbroker.server.commits import Commits
from smbroker.server.history import History
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.mqtt.subscriptions import Subscription

if TYPE_CHECKING:
    from smbroker.server.mqtt.service import Mqtt


def go_back(service: "Mqtt", session: MqttSession, one: Subscription, wanted: str) -> None:
    """The history of a subscription, before what is new. Raises Malformed: it has none, and is not made."""
    try:
        commits, history = _sources(service, one)
        reading, permit = history.new_reading(), session.grant.replay()
        question = _question(wanted, reading, commits, one.pattern, permit)
    except Malformed:
        service.unsubscribe(session, one.share, one.pattern)
        raise
    replay = session.replay or service.keep(session)
    if isinstance(question, int):
        replay.go_back(one, question)
        return

    def placed(answer: Place | Failed) -> None:
        if session.replay is replay and session.known.all.get(one.key) is one:
            replay.go_back(one, answer.offset if isinstance(answer, Place) else answer.next)

    history.ask(question, placed)


def _sources(service: "Mqtt", one: Subscription) -> tuple[Commits, History]:
    commits, history = service.turn.commits, service.history
    if one.share or commits is None or history is None:
        text = "there is no history without the log" if not one.share else "a shared subscription has no history"
        raise Malformed("mqtt_replay", text, IMPLEMENTATION)
    return commits, history


def _question(
    wanted: str, reading: int, commits: Commits, pattern: Filter, permit: Permit | None
) -> int | Moment | Backwards:
    """The offset, or what tells it."""
    word, _, value = wanted.partition("=")
    first, end = commits.first_offset, commits.recent.next
    try:
        if word == "all" and not value:
            return first
        if word == "from":
            return max(int(value), first)
        if word == "last" and (most := int(value)) > 0:
            return Backwards(reading, first, end, pattern, most, permit)
        if word == "since":
            when = datetime.fromisoformat(value)
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            return Moment(reading, round(when.timestamp() * 1e6))
        raise ValueError(wanted)
    except ValueError as error:
        text = f"smb-replay is all, from=OFFSET, since=TIME or last=N, not {wanted}"
        raise Malformed("mqtt_replay", text, IMPLEMENTATION) from error
