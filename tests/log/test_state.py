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


def test_while_it_is_open_changes_go_into_one_file_that_stays(tmp_path: Path) -> None:
    """To open and close the database for each of them would cost several syncs instead of one."""
    path, journal = tmp_path / "state.db", tmp_path / "state.db-wal"
    state = State(path)
    seen = set()
    for number in range(3):
        state.save_fact("a", number)
        assert state.flush(5)
        seen.add(journal.stat().st_ino)
    assert len(seen) == 1
    state.close()
    assert not journal.exists()
    state = State(path)
    assert state.load_fact("a") == 2
    state.close()


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


@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_was_removed_or_replaced_is_told_and_nothing_saved_is_lost(
    tmp_path: Path, replaced: bool
) -> None:
    path, aside, before = tmp_path / "state.db", tmp_path / "aside.db", tmp_path / "before.db"
    troubles: list[str] = []
    State(before).close()
    state = State(path, troubles.append)
    state.save_session(KEY, 1)
    assert state.flush(5)
    path.rename(aside)
    if replaced:
        before.replace(path)
    state.save_session(PEER, 2)
    assert not state.flush(0.5)
    assert troubles == [f"{path}: removed or replaced while the broker runs; put it back, or restart the broker"]
    aside.replace(path)
    assert state.flush(10)
    assert troubles[-1] == ""
    state.close()
    assert {key: one.cursor for key, one in reopened(path).items()} == {KEY: 1, PEER: 2}


def test_what_no_database_takes_is_left_out_and_told_and_the_rest_is_saved(tmp_path: Path) -> None:
    troubles: list[str] = []
    state = State(tmp_path / "state.db", troubles.append)
    with state._changed:  # the writing thread waits, so that all becomes one transaction
        state.save_session(KEY, 1)
        state.save_batch("query", 1 << 63, 0)
        state.save_session(PEER, 2)
    assert state.flush(5)
    state.save_session(KEY, 3)
    assert state.flush(5)
    state.close()
    assert [bool(trouble) for trouble in troubles] == [True, False]
    assert "batch" in troubles[0]
    assert {key: session.cursor for key, session in reopened(tmp_path / "state.db").items()} == {KEY: 3, PEER: 2}


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(LogError, match=r"state\.db"):
        State(path)


def test_damage_beyond_the_beginning_of_the_database_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = State(path)
    for number in range(1_000):
        state.save_session(("typed", f"C{number}", ""), 0)
        state.save_subscription(("typed", f"C{number}", ""), exact(b"a"), True, 0)
        state.save_retained(b"%d" % number, bytes(10), "[]")
        state.save_batch(f"query {number}", 0, 0)
    assert state.flush(5)
    state.close()
    raw = bytearray(path.read_bytes())
    size = int.from_bytes(raw[16:18], "big")  # of a page
    for page in range(2 * size, len(raw), size):
        raw[page : page + 100] = b"\xff" * 100
    path.write_bytes(raw)
    state = State(path)
    for load in (state.load, state.load_retained, state.load_ledger):
        with pytest.raises(LogError, match=r"state\.db: .*; move it away"):
            load()
    state.close()


@given(
    st.lists(
        st.sampled_from([ANY, REST])
        | st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"])).map(str.encode),
        min_size=1,
    )
)
def test_a_filter_survives_packing(levels: list[bytes]) -> None:
    assert unpacked(packed(tuple(levels))) == tuple(levels)
