"""All MQTT sessions: who connects to which, take-over, expiry, subscriptions and their feeds."""

import time
from asyncio import TimerHandle
from collections.abc import Callable, Iterable
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol

from smbroker.core.delivery import Delivery
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Connect, Will
from smbroker.dialects.mqtt.reasons import (
    CLIENT_ID_NOT_VALID,
    QUOTA_EXCEEDED,
    SESSION_TAKEN_OVER,
    Malformed,
)
from smbroker.model.filter import Filter
from smbroker.model.message import Dialect
from smbroker.model.topic import Topic
from smbroker.server.config import MqttConfig
from smbroker.server.history import History
from smbroker.server.mqtt.replay import Replay
from smbroker.server.mqtt.retained import RetainedMessages
from smbroker.server.mqtt.session import NEVER, MqttSession
from smbroker.server.mqtt.shared import Share, give_back
from smbroker.server.mqtt.subscriptions import Subscription, size_of
from smbroker.server.mqtt.wills import Wills
from smbroker.server.turn import Turn

if TYPE_CHECKING:
    from smbroker.server.mqtt.connection import MqttConnection

PART_OF_ONE = 8  # a session may take an eighth of the memory for subscriptions


class Keeping(Protocol):
    """Is told what should survive a restart."""

    def session(self, session: MqttSession) -> None: ...

    def after(self, callback: Callable[[], None]) -> None: ...

    def dropped(self, session: MqttSession) -> None: ...

    def subscribed(self, session: MqttSession, one: Subscription) -> None: ...

    def moved(self, session: MqttSession, subscriptions: Iterable[Subscription]) -> None: ...

    def shared(self, share: Share) -> None: ...

    def unshared(self, share: Share) -> None: ...

    def unsubscribed(self, session: MqttSession, one: Subscription) -> None: ...


class Mqtt:
    def __init__(self, turn: Turn, config: MqttConfig, history: History | None, max_subscriptions: int) -> None:
        self.turn = turn
        self.config = config
        self.history = history
        self.max_subscriptions = max_subscriptions
        self._filter_bytes = 0  # of memory for all subscriptions, about
        self.sessions: dict[str, MqttSession] = {}
        self.heads: dict[tuple[Topic, int, int, int], bytes] = {}  # of sessions' packets
        self.here: set[MqttSession] = set()  # whose client is connected
        self.retained = RetainedMessages(config.max_retained, config.max_retained_bytes, turn.stats)
        turn.retain = self.retained.take
        self._shares: dict[tuple[str, Filter], Share] = {}
        self._expiries: dict[MqttSession, TimerHandle] = {}
        self.wills = Wills(turn, self._will_settled)
        self.keeping: Keeping | None = None

    # --- connections come ---

    def open(self, connection: "MqttConnection", packet: Connect) -> tuple[MqttSession, bool, bool]:
        """The session of a CONNECT, whether it was there before, and whether one that lasted ends instead.

        Raises Malformed if there is no room."""
        before = self.sessions.get(packet.client)
        lasted = before is not None and before.lasting
        session = self._owned(before, connection.grant.user)
        if session and session.connection:
            session.connection.end(SESSION_TAKEN_OVER, "another connection has taken the session over")
            session = self.sessions.get(packet.client)  # it may have ended with its connection
        self.wills.settle(packet.client, publish=packet.clean)
        if session and packet.clean:
            self.drop(session)
            session = None
        present = session is not None
        if session is None:
            if len(self.sessions) >= self.config.max_sessions:
                raise Malformed("too_many_sessions", "no room for another session (mqtt.max_sessions)", QUOTA_EXCEEDED)
            session = self.sessions[packet.client] = MqttSession(self, packet.client)
        session.user = connection.grant.user
        session.grant = connection.grant
        session.rights_changed()
        self._adopt(session, packet)
        self._cancel_expiry(session)
        self.turn.settle()
        session.connection = connection
        session.outbox = connection
        delayed = packet.will and packet.will.properties.get(f.WILL_DELAY)
        session.will, session.will_due = packet.will if delayed else None, 0.0
        self.here.add(session)
        if self.keeping and session.lasting:
            self.keeping.session(session)
        elif self.keeping and session.noted:
            self.keeping.dropped(session)  # it ends with its connection, and with the broker's crash
        return session, present, lasted and not present

    def _owned(self, session: MqttSession | None, user: str | None) -> MqttSession | None:
        """The session, if it is this user's. One of somebody who was not known makes room for a user."""
        access = self.turn.access
        if session is None or session.user == user or not access.on:
            return session
        gone = session.connection is None and session.user not in access.users.all
        if session.user is not None and not gone:
            text = "the client id is another user's; choose another one"
            raise Malformed("mqtt_other_user", text, CLIENT_ID_NOT_VALID)
        if session.connection:
            session.connection.end(SESSION_TAKEN_OVER, "a user has the client id now")
        if session.name in self.sessions:
            self.drop(session)
        return None

    def rights_changed(self) -> None:
        access = self.turn.access
        for session in list(self.sessions.values()):
            session.rights_changed()
            who = session.grant.identity
            if who and who.proof and who.user not in access.users.all:
                if session.connection:
                    session.connection.rights_changed()
                if session.name in self.sessions:
                    self.drop(session)

    def _adopt(self, session: MqttSession, packet: Connect) -> None:
        """What the client says of itself with this connection."""
        properties = packet.properties
        session.version = packet.version
        expiry = properties.get(f.SESSION_EXPIRY, 0) if packet.version == 5 else (0 if packet.clean else NEVER)
        session.expiry = self.capped(expiry)
        session.window = min(properties.get(f.RECEIVE_MAXIMUM, 65_535), self.config.max_inflight)
        session.max_packet = min(properties.get(f.MAXIMUM_PACKET_SIZE, f.MAX_LENGTH), f.MAX_LENGTH)
        session.alias_maximum = properties.get(f.TOPIC_ALIAS_MAXIMUM, 0)

    def capped(self, expiry: int) -> int:
        most = self.config.max_session_expiry
        return min(expiry, most) if most else expiry

    def attach(self, session: MqttSession) -> None:
        """After the CONNACK: what was in flight is sent again, then what waits."""
        session.regroup()
        self._feed_all(session)
        session.resend()
        if session.replay:
            session.replay.attach()
        session.pump()
        for share in session.sharing:
            share.attached()

    def when_kept(self, session: MqttSession, callback: Callable[[], None], *, ended: bool = False) -> None:
        """Calls back when what is remembered of the session survives a crash, and that the one before it has ended
        (`ended`); at once if nothing has to."""
        if self.keeping and (session.lasting or ended):
            self.keeping.after(callback)
        else:
            callback()

    def changed(self, session: MqttSession) -> None:
        """Something about a client that is away."""
        if self.keeping and session.lasting and self.sessions.get(session.name) is session:
            self.keeping.session(session)

    def new_id(self) -> str:
        while (name := "smb-" + token_hex(8)) in self.sessions:
            pass
        return name

    # --- connections go ---

    def closed(self, connection: "MqttConnection", session: MqttSession, will: Will | None) -> None:
        """The connection has ended; with a will it was not by a DISCONNECT, or that asked for the will."""
        self.turn.settle()
        if session.connection is not connection:
            return
        session.connection = None
        session.outbox = None
        session.retaining = None
        self.here.discard(session)
        session.will = None
        if will:
            self.wills.send(connection, session, will)
        give_back(session, ended=not session.lasting)
        self._leave_shares(session)
        if not session.lasting:
            self.drop(session)
            return
        if session.replay:
            session.replay.detach()
        elif self.history or session.plain:
            session.drop_queue()
        self._feed_all(session)
        self._expire_later(session)
        if self.keeping:
            self.keeping.session(session)
        self.turn.begin()

    def _leave_shares(self, session: MqttSession) -> None:
        for share in session.sharing:
            share.detached()
            if share.lasting and self.keeping:
                self.keeping.shared(share)

    def _will_settled(self, client: str) -> None:
        session = self.sessions.get(client)
        if session and session.will_due:
            session.will, session.will_due = None, 0.0
            self.changed(session)

    def _expire_later(self, session: MqttSession) -> None:
        if session.expiry != NEVER:
            session.expires_at = time.time() + session.expiry
            self.expire_in(session, session.expiry)

    def expire_in(self, session: MqttSession, seconds: float) -> None:
        self._expiries[session] = self.turn.loop.call_later(seconds, self._expired, session)

    def _expired(self, session: MqttSession) -> None:
        self._expiries.pop(session, None)
        if session.connection is None and self.sessions.get(session.name) is session:
            self.wills.settle(session.name)
            self.drop(session)
            self.turn.begin()

    def _cancel_expiry(self, session: MqttSession) -> None:
        timer = self._expiries.pop(session, None)
        if timer:
            timer.cancel()
        session.expires_at = 0.0

    def drop(self, session: MqttSession) -> None:
        """The session ends, with all its subscriptions."""
        self._cancel_expiry(session)
        give_back(session, ended=True)
        for one in list(session.known.all.values()):
            self._remove(session, one)
        if session.replay:
            session.replay.detach()
            session.replay = None
        self.sessions.pop(session.name, None)
        if self.keeping:
            self.keeping.dropped(session)

    # --- subscriptions ---

    def subscribe(self, session: MqttSession, one: Subscription) -> bool:
        """Whether it is new. The caller has settled the turn."""
        old = session.known.all.get(one.key)
        if old is None:
            self._check_room(session, one.pattern)
        new = session.known.add(one)
        if new:
            self.turn.sessions.by_dialect[Dialect.MQTT] += 1
            self._filter_bytes += size_of(one.pattern)
        if one.share:
            self._share(session, one)
        elif one.qos and self.turn.commits and session.replay is None:
            self.keep(session)
        elif session.replay:
            if old:
                one.start, one.seam = old.start, old.seam
            else:
                session.replay.begin(one)
        if session.regroup():
            self._feed_all(session)
        elif new and not one.share:
            self._feed(session, one)
        if session.lasting and self.keeping:
            self.keeping.subscribed(session, one)
        return new

    def _check_room(self, session: MqttSession, pattern: Filter) -> None:
        known, size, most = session.known, size_of(pattern), self.config.max_filter_bytes
        if len(known.all) >= self.max_subscriptions:
            raise Malformed("too_many_subscriptions", "too many subscriptions (tcp.max_subscriptions)", QUOTA_EXCEEDED)
        if self._filter_bytes + size > most or known.bytes + size > most // PART_OF_ONE:
            text = "the subscriptions take too much memory together (mqtt.max_filter_bytes)"
            raise Malformed("too_many_subscriptions", text, QUOTA_EXCEEDED)

    def keep(self, session: MqttSession, cursor: int | None = None) -> Replay:
        """From here on the session is fed from the log."""
        assert self.turn.commits
        assert self.history
        for each in session.known.own:
            self.turn.delivery.remove(each.pattern, session)
        start = self.turn.commits.recent.next if cursor is None else cursor
        session.first = 0 if session.lasting else start
        session.replay = replay = Replay(session, self.turn, self.turn.commits, self.history, start)
        if cursor is None:
            for each in session.known.own:
                replay.begin(each)
            session.regroup()
            self._feed_all(session)
            replay.wake()
        return replay

    def unsubscribe(self, session: MqttSession, share: str, pattern: Filter) -> bool:
        one = session.known.all.get((share, pattern))
        if one is None:
            return False
        self._remove(session, one)
        if session.replay and not share:
            session.replay.end(one)
        if self.keeping and session.lasting:
            self.keeping.unsubscribed(session, one)
        if session.regroup():
            self._feed_all(session)
        return True

    def _remove(self, session: MqttSession, one: Subscription) -> None:
        session.known.remove(one.share, one.pattern)
        self.turn.sessions.by_dialect[Dialect.MQTT] -= 1
        self._filter_bytes -= size_of(one.pattern)
        if one.share:
            share = self._shares.get(one.key)
            if share:
                share.leave(session)
                if not share.members:
                    self._share_feed.remove(one.pattern, share)
                    del self._shares[one.key]
                    if self.keeping:
                        self.keeping.unshared(share)
        else:
            self.turn.delivery.remove(one.pattern, session)
            self.turn.committed.remove(one.pattern, session)

    def _share(self, session: MqttSession, one: Subscription) -> None:
        share = self._shares.get(one.key)
        if share is None:
            share = self._shares[one.key] = Share(self.turn, self.history, one.share, one.pattern)
            self._share_feed.add(one.pattern, share)
        share.join(session, one)

    @property
    def _share_feed(self) -> Delivery:
        return self.turn.committed if self.history else self.turn.delivery

    @property
    def shares(self) -> Iterable[Share]:
        return self._shares.values()

    def share(self, name: str, pattern: Filter) -> Share | None:
        return self._shares.get((name, pattern))

    def restored(self, session: MqttSession, one: Subscription) -> None:
        session.known.add(one)
        self.turn.sessions.by_dialect[Dialect.MQTT] += 1
        self._filter_bytes += size_of(one.pattern)
        if one.share:
            self._share(session, one)

    def _feed_all(self, session: MqttSession) -> None:
        for one in session.known.own:
            self._feed(session, one)

    def _feed(self, session: MqttSession, one: Subscription) -> None:
        """Puts the subscription on the feed that it belongs to; those of a client that is away cost nothing."""
        feed = self.turn.committed if session.replay else self.turn.delivery
        waits = self.turn.commits is None and not session.plain  # what it gets is queued in memory
        if session.connection or waits:
            feed.add(one.pattern, session)
        else:
            feed.remove(one.pattern, session)
