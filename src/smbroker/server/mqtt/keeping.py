"""What survives a restart: sessions with their subscriptions and cursors, and retained messages.

They are in the state, which is written a moment later than the log. What a crash takes from it is found
again in the log, from the offset up to which the state is complete (`mqtt`): rows that are retained, and
notes that tell identifiers of QoS 2,

    + N …   N has come from the client        - N …   and was released
    > O …   the client has received the message at offset O: it must not be sent again
    ! 0 …   the session has ended: what has come is not of the next one

where … is LIFE BACKS CLIENT: which of the client's sessions it is, and how often that had gone back to history.
What is of an earlier one does not count, nor does > from before the session last went back: it may have to send
that message once more. Applying one twice changes nothing.
"""

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from typing import Any

from smbroker.dialects.mqtt import Decoder
from smbroker.dialects.mqtt.fields import MAX_LENGTH, WILL_DELAY
from smbroker.dialects.mqtt.packets import Connect, Will
from smbroker.log.format import Note
from smbroker.log.log import Log
from smbroker.log.state import SavedSession, SessionKey, State, packed, unpacked
from smbroker.model.errors import LogError
from smbroker.model.filter import Filter
from smbroker.model.grant import EVERYTHING
from smbroker.model.message import Columns, Dialect, Extra, Origin
from smbroker.model.topic import Topic
from smbroker.server.commits import Commits
from smbroker.server.mqtt.retained import Retained
from smbroker.server.mqtt.service import Mqtt
from smbroker.server.mqtt.session import NEVER, MqttSession, new_life
from smbroker.server.mqtt.shared import Share
from smbroker.server.mqtt.subscriptions import Subscription

FACT = "mqtt"
STATE_PATIENCE = 5.0  # seconds for the first word to the state; should it fail, the state is complete a second later
FAR_ROWS, FAR_COMMITS = 50_000, 1_000  # of the log that a start after a crash may have to look through
IDLE_ROWS = 10_000  # a cursor moves on over so many messages that are not for it; less is not worth saving
SHARE = b"$share"
ROWS = ("topic", "payload", "dialect", "source", "client", "qos", "properties", "retain")


class MqttKeeping:
    def __init__(self, service: Mqtt, state: State, commits: Commits) -> None:
        self._mqtt = service
        self._state = state
        self._commits = commits
        self._saved: dict[MqttSession, int] = {}  # `high` as last saved, of sessions that are fed from the log
        self._fact = -1  # the offset up to which the state is complete, as last saved …
        self._then = 0, 0  # … and the changes of the state and the commits there had been

    # --- what `Mqtt` tells ---

    def session(self, session: MqttSession) -> None:
        self._save(session)

    def dropped(self, session: MqttSession) -> None:
        self._saved.pop(session, None)
        self._state.drop_session(_key(session))
        if ended := note_of(session, b"!", 0):
            self._mqtt.turn.settle()
            self._commits.submit(Columns(time.time_ns() // 1000), (), notes=[ended])

    def moved(self, session: MqttSession, subscriptions: Iterable[Subscription]) -> None:
        """They begin elsewhere now."""
        for one in subscriptions:
            self._save_subscription(session, one)
        self._save(session)

    def subscribed(self, session: MqttSession, one: Subscription) -> None:
        self._save_subscription(session, one)
        share = self._mqtt.share(one.share, one.pattern) if one.share else None
        if share:
            self.shared(share)
        self._save(session)

    def _save_subscription(self, session: MqttSession, one: Subscription) -> None:
        options = [one.qos, one.no_local, one.as_published, one.identifier, one.seam]
        start = min(one.start, self._commits.recent.next)
        self._state.save_subscription(_key(session), _packed(one), True, start, json.dumps(options))

    def shared(self, share: Share) -> None:
        share.touched = False
        cursor, high, again = share.saved()
        self._state.save_mqtt(_share_key(share), cursor, 0, json.dumps({"high": high, "again": again}))

    def unshared(self, share: Share) -> None:
        self._state.drop_session(_share_key(share))

    def unsubscribed(self, session: MqttSession, one: Subscription) -> None:
        self._state.drop_subscription(_key(session), _packed(one))
        if session.replay and session.replay.ended:
            self._save(session)

    def after(self, callback: Callable[[], None]) -> None:
        """Calls back when what was told so far is on disk."""
        loop = self._mqtt.turn.loop
        self._state.after(lambda: _ignore(loop.call_soon_threadsafe(callback)))

    def retained(self, topic: Topic, message: Retained | None) -> None:
        if message is None:
            self._state.drop_retained(topic)
            return
        origin, extra = message.origin, message.extra
        about = [origin.dialect, origin.source, origin.client, extra.qos, extra.properties]
        self._state.save_retained(topic, message.payload, json.dumps(about))

    def _save(self, session: MqttSession) -> None:
        about: dict[str, Any] = {"expiry": session.expiry, "inbound": sorted(session.inbound - session.unsure)}
        about |= {"life": session.life, "backs": session.backs}
        if session.releasing:
            about["releasing"] = sorted(session.releasing)
        if session.user is not None:
            about["user"] = session.user
        if session.will:
            packet = Connect(5, will=session.will).encode()
            about["will"] = session.will_due, b64encode(packet).decode()
        cursor = None
        session.changed, session.noted = False, True
        if session.replay:
            cursor, high, pending = session.replay.saved()
            about |= {"high": high, "pending": pending, "done": sorted(session.replay.done)}
            if session.replay.ended:
                about["ended"] = [packed(pattern).hex() for pattern in session.replay.ended]
            session.replay.touched = False
            self._saved[session] = high
        self._state.save_mqtt(_key(session), cursor, int(session.expires_at), json.dumps(about))

    # --- now and then ---

    def save(self, *, completely: bool = True) -> None:
        """What has moved, and up to where the state is complete. The latter alone would be a sync each second while
        messages come, so it may wait, but for two things. It must not become far, because a start has to look through
        the log from there on; nor may it stand before a change of the state, since what the log tells is then applied
        to what came after it."""
        following = self._commits.recent.next
        for session in self._mqtt.here:
            if session.lasting and (session.changed or self._has_moved(session, following)):
                self._save(session)
        for share in self._mqtt.shares:
            if share.touched and share.lasting:
                self.shared(share)
        if following != self._fact and (completely or self._may_not_wait(following)):
            self._save_fact(following)

    def _save_fact(self, offset: int) -> None:
        self._fact = offset
        self._state.save_fact(FACT, offset)
        self._then = self._state.changes, self._commits.count

    def _may_not_wait(self, following: int) -> bool:
        changes, commits = self._then
        far = following - self._fact >= FAR_ROWS or self._commits.count - commits >= FAR_COMMITS
        return far or self._state.changes != changes

    def _has_moved(self, session: MqttSession, following: int) -> bool:
        if session.replay is None:
            return False
        return session.replay.touched or following - self._saved.get(session, 0) > IDLE_ROWS

    # --- the start ---

    def restore(self, saved: Iterable[SavedSession], log: Log, now: float) -> None:
        shares: list[SavedSession] = []
        self._then = self._state.changes, self._commits.count
        for one in saved:
            if one.key[0] == Dialect.MQTT:
                shares.append(one) if one.key[2] else self._restore(one, now)
        for one in shares:
            self._restore_share(one)
        for topic, payload, text in self._state.load_retained():
            dialect, source, client, qos, properties = json.loads(text)
            extra = Extra(qos, True, tuple((key, value) for key, value in properties))
            origin = Origin.at(Dialect(dialect), source, client)
            self._mqtt.retained.put(topic, Retained(payload, extra, origin), tell=False)
        self._mqtt.retained.changed = self.retained
        applied = self._state.load_fact(FACT)
        if applied is None or applied > log.next_offset:  # one of the two was begun anew, and what is in the log
            applied = log.next_offset  # is not the state's: a long one is not searched for it
            self._save_fact(applied)
            self._state.flush(STATE_PATIENCE)
        self._fact = applied
        if applied < log.next_offset or self._mqtt.sessions:
            self._apply(log, max(applied, log.first_offset))

    def _restore(self, one: SavedSession, now: float) -> None:
        service = self._mqtt
        about = json.loads(one.properties or "{}")
        left = one.expires - now if one.expires else 0.0
        due, will = _will(about, now)
        if will:
            service.wills.restored(one.key[1], will, max(due - now, 0), about.get("user"))
        if one.expires and left <= 0:
            self._state.drop_session(one.key)
            return
        session = service.sessions[one.key[1]] = MqttSession(service, one.key[1])
        session.life, session.backs, session.noted = about.get("life", "0"), about.get("backs", 0), True
        session.user = about.get("user")
        session.grant = EVERYTHING  # what waits is looked at when its client comes: only then is known who that is
        session.expiry = about.get("expiry", NEVER)
        session.will, session.will_due = will, due
        session.inbound = set(about.get("inbound", ()))
        session.restore_releasing(about.get("releasing", ()))
        end = self._commits.recent.next  # a log that was begun anew has not come as far as what was saved
        for pattern, (_, start) in one.subscriptions.items():
            service.restored(session, _unpacked(pattern, one.options.get(pattern), start, end))
        if one.cursor is not None:
            replay = service.keep(session, min(one.cursor, end))
            replay.restore(min(about.get("high", 0), end), [entry for entry in about["pending"] if entry[0] < end])
            replay.done.update(about.get("done", ()))
            replay.ended = frozenset(unpacked(bytes.fromhex(pattern)) for pattern in about.get("ended", ()))
        session.regroup()
        if session.expiry != NEVER:
            session.expires_at = float(one.expires or now + session.expiry)
            service.expire_in(session, left if one.expires else session.expiry)

    def _restore_share(self, one: SavedSession) -> None:
        share = self._mqtt.share(one.key[1], unpacked(bytes.fromhex(one.key[2])))
        if share is None:
            self._state.drop_session(one.key)
            return
        about = json.loads(one.properties or "{}")
        end = self._commits.recent.next
        again = [offset for offset in about["again"] if offset < end]
        share.restore(min(one.cursor or 0, end), min(about["high"], end), again)

    def _retain_from(self, log: Log, start: int) -> None:
        for batch in log.read(start, columns=ROWS):
            if batch.column("retain").true_count:
                for row in batch.to_pylist():
                    if row["retain"]:
                        self._retain(row)

    def _apply(self, log: Log, start: int) -> None:
        """What the state has missed, from the log; what is damaged there is said and left out."""
        cursor = start
        while cursor < log.next_offset:
            try:
                self._retain_from(log, cursor)
                break
            except LogError as error:
                self._mqtt.turn.console.warn("log_damaged", f"retained messages: {error.text}")
                cursor = log.beyond(cursor)
        over: set[bytes] = set()
        touched = {self._note(note, over): None for _, notes in log.notes(start) for note in notes}
        for session in touched:
            if session:  # saved before it is said that the state is complete up to here
                if session.life.encode() in over:
                    session.life = new_life()
                self._save(session)

    def _retain(self, row: dict[str, Any]) -> None:
        pairs = tuple((one["key"], one["value"]) for one in row["properties"])
        origin = Origin.at(Dialect(row["dialect"]), row["source"], row["client"])
        self._mqtt.retained.put(row["topic"].encode(), Retained(row["payload"], Extra(row["qos"], True, pairs), origin))

    def _note(self, note: Note, over: set[bytes]) -> MqttSession | None:
        """The session that it is about; `over` are lives that have ended before it."""
        name, value = note
        if name != FACT:
            return None
        number, life, backs, client = (*value[1:].split(b" ", 3), b"", b"", b"")[:4]
        session = self._mqtt.sessions.get(client.decode())
        if session is None or life in over:
            return None
        if session.life.encode() in over:  # the next one of that client, which the state has not heard of
            session.life, session.backs = life.decode(), int(backs)
        if value[:1] == b"!":
            over.add(life)
        if life != session.life.encode():
            return None
        _take(session, value[:1], int(number), int(backs))
        return session


def _take(session: MqttSession, sign: bytes, number: int, backs: int) -> None:
    """What a note of this very session says."""
    if sign == b"+":
        session.inbound.add(number)
    elif sign == b"-":
        session.inbound.discard(number)
    elif sign == b"!":
        session.inbound.clear()
    elif session.replay and backs >= session.backs:
        session.replay.received(number)


def note_of(session: MqttSession, sign: bytes, number: int) -> Note | None:
    """What must survive with the messages, of a session that is in the state, or was: that it is not any more may not
    be on disk yet."""
    if not session.noted or not session.mqtt.turn.commits:
        return None
    about = f"{number} {session.life} {session.backs} {session.name}"
    return FACT, sign + about.encode()


def _ignore(_handle: object) -> None:
    """For callbacks that return nothing."""


def _key(session: MqttSession) -> SessionKey:
    return Dialect.MQTT.value, session.name, ""


def _will(about: dict[str, Any], now: float) -> tuple[float, Will | None]:
    """When it is due, and the will; if the client was here when the broker was killed its delay begins now."""
    due, encoded = about.get("will", (0, None))
    if encoded is None:
        return 0.0, None
    (packet,) = Decoder(MAX_LENGTH).feed(b64decode(encoded))
    assert isinstance(packet, Connect)
    assert packet.will
    return due or now + min(packet.will.properties.get(WILL_DELAY, 0), about["expiry"]), packet.will


def _share_key(share: Share) -> SessionKey:
    return Dialect.MQTT.value, share.name, packed(share.pattern).hex()


def _packed(one: Subscription) -> Filter:
    return (SHARE, one.share.encode(), *one.pattern) if one.share else one.pattern


def _unpacked(pattern: Filter, options: str | None, start: int, end: int) -> Subscription:
    qos, no_local, as_published, identifier, seam = (*json.loads(options or "[0, false, false, 0]"), 0)[:5]
    share = ""
    if pattern[0] == SHARE and len(pattern) > 2 and isinstance(pattern[1], bytes):
        share, pattern = pattern[1].decode(), pattern[2:]
    return Subscription(pattern, share, qos, no_local, as_published, identifier, min(start, end), min(seam, end))
