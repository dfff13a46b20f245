"""A shared subscription, `$share/NAME/FILTER`: each message goes to one of its members, in turns.

Without a log, members that are here come first; if none is, the message waits in the queue of one whose session
lasts. With a log the share has a cursor of its own: while no member is here, or none has room, its messages wait in
the log.

    live        level with the log: fed at every commit
    otherwise   behind: it goes on with `cursor` when a member can take more

Of what was given to members `waiting` is not acknowledged yet. What a member cannot have any more is given `again`, to
another. Offsets below `high` were given before, but for those.
"""

from itertools import chain
from typing import TYPE_CHECKING

from smbroker.core.sessions import Session
from smbroker.log.questions import Failed, Piece, Request
from smbroker.model.filter import Filter, matches
from smbroker.model.grant import EVERYTHING
from smbroker.model.message import Columns, Dialect
from smbroker.model.topic import Topic
from smbroker.server.mqtt.items import Flight, Item
from smbroker.server.mqtt.session import MqttSession
from smbroker.server.mqtt.subscriptions import Subscription

if TYPE_CHECKING:
    from smbroker.server.commits import Commits
    from smbroker.server.history import History
    from smbroker.server.turn import Turn

STEP_ROWS = 5_000  # that one step looks at
PENDING = 1 << 62  # the cursor of a new one until it is known


class Share(Session):
    __slots__ = (
        "_asked", "_order", "_reading", "_turn", "_waking", "again", "commits", "cursor", "fresh", "high", "history",
        "live", "members", "pattern", "touched", "turn", "waiting",
    )  # fmt: skip

    def __init__(self, turn: "Turn", history: "History | None", name: str, pattern: Filter) -> None:
        super().__init__(Dialect.MQTT, name)
        self.turn = turn
        self.commits: Commits | None = turn.commits if history else None
        self.history = history
        self.pattern = pattern
        self.members: dict[MqttSession, Subscription] = {}
        self._order: list[MqttSession] = []
        self._turn = -1  # of the member that got the last one
        self.receive = self.take
        self.grant = EVERYTHING  # each member has its own
        self.cursor = self.high = self.fresh = PENDING
        self.live = False
        self.waiting: dict[int, MqttSession] = {}
        self.again: set[int] = set()
        self.touched = True  # there is something new to save
        self._reading = history.new_reading() if history else 0
        self._asked = False
        self._waking = False
        if self.commits:
            self.commits.after(self._begin)

    def _begin(self) -> None:
        """It begins with what is published after it was made."""
        if self.cursor == PENDING:
            assert self.commits
            self.cursor = self.high = self.fresh = self.commits.recent.next
        self.wake()

    @property
    def lasting(self) -> bool:
        return any(member.lasting for member in self.members)

    # --- what comes ---

    def take(self, topic: Topic, columns: Columns, start: int, end: int) -> None:
        if self.commits is None or columns.base < 0:
            self._take_unkept(topic, columns, start, end)
        elif self.live:
            given: set[MqttSession] = set()
            for row in range(start, end):
                if not self._give(columns, row, columns.base + row, given):
                    self._stop_at(columns.base + row)
                    break
            self._pump(given)

    def _take_unkept(self, topic: Topic, columns: Columns, start: int, end: int) -> None:
        members = [one for one in self.members if _may(one, topic)]
        able = [one for one in members if _has_room(one)]
        able = able or [one for one in members if one.connection]
        away = not able
        able = able or [one for one in members if one.lasting]
        if not able:
            return
        for row in range(start, end):
            self._turn += 1
            member = able[self._turn % len(able)]
            item = member.item_of(columns, row, [self.members[member]])
            if item and (item.qos or not away):
                member.add(item)
        for member in able:
            member.pump()

    def _give(self, columns: Columns, row: int, offset: int, given: set[MqttSession]) -> bool:
        """To the member whose turn it is; whether there was one with room."""
        topic = columns.topics[row]
        member = self._next(topic)
        if member is None:
            self._pump(given)
            member = self._next(topic)
        if member is None and not any(one.connection for one in self._order):
            return False  # it waits in the log
        if member is None:  # nobody with room; or nobody here who may have it, and then nobody gets it
            return not any(one.connection and _may(one, topic) for one in self._order)
        item = member.item_of(columns, row, [self.members[member]])
        if item is None or (not item.qos and offset < self.fresh):
            return True
        if item.qos:
            again = offset in self.again
            self.waiting[offset] = member
            item = item._replace(shared=(self, offset), dup=again)
        member.push(item)
        given.add(member)
        return True

    def _next(self, topic: Topic) -> MqttSession | None:
        members = self._order
        for _ in members:
            self._turn += 1
            member = members[self._turn % len(members)]
            if _may(member, topic) and _has_room(member):
                return member
        return None

    @staticmethod
    def _pump(members: set[MqttSession]) -> None:
        for member in members:
            member.pump()

    # --- members come and go ---

    def join(self, session: MqttSession, one: Subscription) -> None:
        if session not in self.members:
            session.sharing.append(self)
        self.members[session] = one
        self._order = list(self.members)
        if session.connection:
            self.attached()

    def leave(self, session: MqttSession) -> None:
        self.members.pop(session, None)
        session.sharing = [share for share in session.sharing if share is not self]
        self._order = list(self.members)
        self.detached()

    def attached(self) -> None:
        """A member is here."""
        if self.commits and not self.live:
            if sum(1 for member in self.members if member.connection) == 1:
                self.fresh = self.commits.recent.next
            self.wake()

    def detached(self) -> None:
        """One is gone. Without any, what comes waits in the log."""
        if self.commits and self.live and not any(member.connection for member in self.members):
            self._stop_at(self.commits.recent.next)
        self.touched = True
        self.wake()

    def done(self, offset: int) -> None:
        self.waiting.pop(offset, None)
        self.again.discard(offset)
        self.touched = True
        if not self.live:
            self.wake()

    def give_back(self, offset: int) -> None:
        """The member will not have it: somebody else should."""
        if self.waiting.pop(offset, None) is None:
            return
        if self.live:
            assert self.commits
            self._stop_at(self.commits.recent.next)
        self.again.add(offset)
        if offset < self.cursor:
            self.cursor = offset
            self._withdraw()
        self.touched = True
        self.wake()

    def _stop_at(self, offset: int) -> None:
        self.live = False
        self.cursor = offset
        self.high = max(self.high, offset)
        self.touched = True

    # --- going on ---

    def wake(self) -> None:
        if self.commits and not self._waking:
            self._waking = True
            self.turn.later(self._step)

    def _step(self) -> None:
        self._waking = False
        if self.commits is None or self.live or self._asked or self.cursor == PENDING:
            return
        if not any(map(_has_room, self._order)):
            return
        if self.cursor < self.commits.recent.first:
            self._ask()
            return
        rows = 0
        for base, columns in self.commits.recent.since(self.cursor):
            if rows > STEP_ROWS:
                self.wake()
                return
            if not self._offer(columns, range(base, base + len(columns))):
                return  # goes on when a member has read or acknowledged something
            rows += len(columns)
        self.cursor = self.high = self.commits.recent.next
        self.again.clear()
        self.live = True

    def _offer(self, columns: Columns, offsets: "range | list[int]") -> bool:
        given: set[MqttSession] = set()
        whole = True
        for row, offset in enumerate(offsets):
            if offset < self.cursor:
                continue
            meant = offset >= self.high or offset in self.again
            if meant and matches(self.pattern, columns.topics[row]) and not self._give(columns, row, offset, given):
                whole = False
                break
            self.again.discard(offset)
            self.cursor = offset + 1
            self.high = max(self.high, self.cursor)
        self._pump(given)
        return whole

    def _ask(self) -> None:
        assert self.history
        assert self.commits
        self._asked = True
        request = Request(self._reading, self.cursor, self.commits.recent.next, None, frozenset((self.pattern,)))
        self.history.ask(request, self._answered)

    def _withdraw(self) -> None:
        """An answer that is on its way is about what comes later."""
        if self._asked:
            assert self.history
            self.history.forget(self._reading)
            self._reading = self.history.new_reading()
            self._asked = False

    def _answered(self, answer: Piece | Failed) -> None:
        self._asked = False
        whole = True
        if isinstance(answer, Piece):
            whole = self._offer(answer.columns, list(answer.offsets))
        if whole:
            self.cursor = max(self.cursor, answer.next)
            self.high = max(self.high, self.cursor)
            self.wake()
        self.turn.begin()

    # --- what is remembered ---

    def saved(self) -> tuple[int, int, list[int]]:
        """The cursor, `high`, and what is to be given again should nobody acknowledge it any more."""
        assert self.commits
        end = self.commits.recent.next
        position = end if self.live else min(self.cursor, end)
        again = sorted(chain(self.waiting, self.again))
        return min([position, *again]), end if self.live else min(self.high, end), again

    def restore(self, cursor: int, high: int, again: list[int]) -> None:
        self.cursor, self.high, self.again = cursor, high, set(again)


def _may(member: MqttSession, topic: Topic) -> bool:
    return not member.grant.limited or member.grant.subscribes[topic]


def _has_room(member: MqttSession) -> bool:
    """It is here, reads, and waits for more."""
    return member.connection is not None and not member.connection.full and member.room


def give_back(session: MqttSession, *, ended: bool) -> None:
    """What waits in the queue of a member that is gone; and what it has not acknowledged, if its session has ended.

    It may have unsubscribed, and still have something of the share."""
    kept: list[Item] = []
    for item in session.queue:
        if item.shared:
            item.shared[0].give_back(item.shared[1])
        else:
            kept.append(item)
    session.requeue(kept)
    if ended:
        for _, flight in session.inflight:
            _give_back_flight(flight)


def _give_back_flight(flight: Flight) -> None:
    if flight.item.shared:
        share, offset = flight.item.shared
        # "the Server MUST NOT send the Application Message to any other" [MQTT-4.8.2-5]: QoS 2
        share.give_back(offset) if flight.item.qos == 1 else share.done(offset)
