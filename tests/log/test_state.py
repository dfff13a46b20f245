import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smbroker.log.state import SavedSession, State, packed, unpacked
from smbroker.model.errors import LogError
from smbroker.model.filter import ANY, REST, exact

KEY = ("typed", "C1", "")
PEER = ("soh", "127.0.0.1:5000", "udp://127.0.0.1:8080")


def reopened(path: Path) -> dict[tuple[str, str, str], SavedSession]:
    state = State(path)
    try:
        return {session.key: session for session in state.load()}
    finally:
        state.close()


def test_what_is_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    state.save_session(KEY, 7)
    state.save_subscription(KEY, exact(b"a/b"), True, 3)
    state.save_subscription(KEY, exact(b"c"), False, 4)
    state.save_session(PEER, None)
    state.save_subscription(PEER, (ANY, b"x", REST), False, 0)
    state.save_cursors([(KEY, 9)])
    assert state.flush(5)
    state.close()
    assert reopened(tmp_path / "state.db") == {
        KEY: SavedSession(KEY, 9, {exact(b"a/b"): (True, 3), exact(b"c"): (False, 4)}),
        PEER: SavedSession(PEER, None, {(ANY, b"x", REST): (False, 0)}),
    }


def test_the_latest_word_wins_even_when_all_is_written_at_once(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    with state._changed:  # the writing thread waits, so that all becomes one transaction
        state.save_session(KEY, 1)
        state.save_subscription(KEY, exact(b"a"), True, 1)
        state.drop_session(KEY)
        state.save_session(KEY, 2)
        state.save_subscription(KEY, exact(b"a"), False, 2)
        state.save_subscription(KEY, exact(b"b"), True, 2)
        state.drop_subscription(KEY, exact(b"b"))
    assert state.flush(5)
    state.close()
    assert reopened(tmp_path / "state.db") == {KEY: SavedSession(KEY, 2, {exact(b"a"): (False, 2)})}


def test_a_session_that_is_dropped_takes_its_subscriptions_along(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    state.save_session(KEY, 1)
    state.save_subscription(KEY, exact(b"a"), True, 1)
    assert state.flush(5)
    state.drop_session(KEY)
    state.save_session(KEY, 5)
    assert state.flush(5)
    state.close()
    assert reopened(tmp_path / "state.db") == {KEY: SavedSession(KEY, 5)}


def test_while_the_database_refuses_changes_wait_and_are_written_later(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    troubles: list[str] = []
    state = State(path, troubles.append)
    state.save_session(KEY, 1)
    assert state.flush(5)
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("PRAGMA user_version = 1")
    held.execute("ALTER TABLE sessions RENAME TO elsewhere")
    state.save_session(KEY, 2)
    assert not state.flush(0.5)
    state.save_session(KEY, 3)
    held.execute("ALTER TABLE elsewhere RENAME TO sessions")
    held.close()
    assert state.flush(10)
    state.close()
    assert troubles[0]
    assert troubles[-1] == ""
    assert reopened(path)[KEY].cursor == 3


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(LogError, match=r"state\.db"):
        State(path)


@given(
    st.lists(
        st.sampled_from([ANY, REST])
        | st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"])).map(str.encode),
        min_size=1,
    )
)
def test_a_filter_survives_packing(levels: list[bytes]) -> None:
    assert unpacked(packed(tuple(levels))) == tuple(levels)
