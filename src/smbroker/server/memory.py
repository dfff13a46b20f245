"""What survives a restart: typed sessions and UDP subscriptions, written to the state as they change.

A typed session's cursor is saved when its client leaves, now and then, and when the broker stops; it is
never past what the log has committed.
"""

from collections.abc import Iterable

from smbroker.core.sessions import Session, Sessions
from smbroker.log.state import SavedSession, SessionKey, State
from smbroker.model.errors import Refused
from smbroker.model.filter import Filter, exact, exact_topic
from smbroker.model.message import Dialect
from smbroker.model.topic import Topic
from smbroker.server.commits import Commits
from smbroker.server.followers import Followers


class Memory:
    def __init__(self, state: State, commits: Commits, followers: Followers) -> None:
        self._state = state
        self._commits = commits
        self._followers = followers
        self._cursors: dict[Session, int | None] = {}  # as last saved
        followers.moved = self._started

    # --- what `Sessions` tells ---

    def subscribed(self, session: Session, pattern: Filter, keep: bool) -> None:
        if not session.lasting:
            return
        now = self._commits.recent.next
        if session not in self._cursors:
            self._cursors[session] = now if session.dialect is Dialect.TYPED else None
            self._state.save_session(_key(session), self._cursors[session])
        topic = exact_topic(pattern)
        start = self._followers.start_of(session, topic) if topic is not None else None
        self._state.save_subscription(_key(session), pattern, keep, now if start is None else start)

    def unsubscribed(self, session: Session, pattern: Filter) -> None:
        if not session.lasting:
            return
        if session.subscriptions:
            self._state.drop_subscription(_key(session), pattern)
        else:
            self._state.drop_session(_key(session))
            self._cursors.pop(session, None)

    def drop(self, key: SessionKey) -> None:
        self._state.drop_session(key)

    def _started(self, session: Session, topic: Topic, start: int) -> None:
        pattern = exact(topic)
        self._state.save_subscription(_key(session), pattern, session.subscriptions[pattern], start)

    # --- cursors ---

    def save_cursors(self) -> None:
        changed = [
            (session, cursor) for session, cursor in self._followers.cursors() if cursor != self._cursors[session]
        ]
        self._cursors.update(changed)
        self._state.save_cursors((_key(session), cursor) for session, cursor in changed)

    # --- the start and the end ---

    def restore_typed(self, sessions: Sessions, saved: Iterable[SavedSession]) -> list[Refused]:
        """What there is no room for any more, because a limit was lowered, is left out and returned."""
        refused = []
        for one in saved:
            if one.key[0] == Dialect.TYPED:
                try:
                    self._restore(sessions, one)
                except Refused as error:
                    refused.append(error)
        return refused

    def _restore(self, sessions: Sessions, one: SavedSession) -> None:
        session = sessions.typed(one.key[1])
        self._cursors[session] = one.cursor
        now = self._commits.recent.next  # a log that was begun anew has not come as far as what was saved
        starts: dict[Topic, int] = {}
        for pattern, (keep, start) in one.subscriptions.items():
            topic = exact_topic(pattern)
            if keep and topic is not None:
                sessions.restore_kept(session, pattern)
                starts[topic] = min(start, now)
            else:
                sessions.subscribe(session, pattern)
        if starts:
            self._followers.restore(session, min(one.cursor or 0, now), starts)

    def close(self) -> None:
        self.save_cursors()
        self._state.close()


def _key(session: Session) -> SessionKey:
    return session.dialect.value, session.name, session.listener
