"""What is remembered besides the messages: sessions, their subscriptions and cursors, in SQLite.

`state.db` is a checkpoint. Changes are handed over by the broker's loop and never wait there: a thread
writes all that has gathered as one transaction, the latest word on each thing. When the disk refuses,
they stay gathered (there is at most one per thing) and are tried again. That thread's connection stays
open, so that a transaction is one sync: to open and close it for each would cost five, and two files.

    session       (dialect, name, listener)   cursor: the next offset of the log to send; expires, properties: MQTT
    subscription  (session, filter)           keep: while away; start: no offset before it; options: MQTT
    retained      topic                       MQTT's retained messages
    ledger        query                       the sink's last batch; applied again from the log after a crash
"""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from smbroker.model.errors import LogError
from smbroker.model.filter import ANY, REST, Filter, FilterLevel

VERSION = 1
MAX_JOURNAL = 1 << 20  # bytes that are kept of the file that transactions go into first
RETRY = 1.0  # seconds until a write that failed is tried again
SCHEMA = """
CREATE TABLE sessions (
    dialect TEXT NOT NULL, name TEXT NOT NULL, listener TEXT NOT NULL,
    cursor INTEGER, expires INTEGER, properties TEXT,
    PRIMARY KEY (dialect, name, listener)
) WITHOUT ROWID;
CREATE TABLE subscriptions (
    dialect TEXT NOT NULL, name TEXT NOT NULL, listener TEXT NOT NULL, filter BLOB NOT NULL,
    keep INTEGER NOT NULL, start INTEGER NOT NULL, options TEXT,
    PRIMARY KEY (dialect, name, listener, filter)
) WITHOUT ROWID;
CREATE TABLE ledger (query TEXT PRIMARY KEY, batch INTEGER NOT NULL, next_offset INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
RETAINED = "CREATE TABLE IF NOT EXISTS retained (topic BLOB PRIMARY KEY, payload BLOB NOT NULL, about TEXT NOT NULL)"
SESSION = "dialect = ? AND name = ? AND listener = ?"

SessionKey: TypeAlias = tuple[str, str, str]
"""Dialect, name (a client's id, or a peer's address), and the listener that a peer belongs to (else empty)."""


@dataclass(slots=True)
class SavedSession:
    key: SessionKey
    cursor: int | None
    subscriptions: dict[Filter, tuple[bool, int]] = field(default_factory=dict)  # keep, start
    expires: int | None = None  # seconds since 1970
    properties: str | None = None
    options: dict[Filter, str] = field(default_factory=dict)  # of subscriptions


class State:
    def __init__(self, path: Path, on_trouble: Callable[[str], None] = lambda _: None) -> None:
        self._path = path
        self._on_trouble = on_trouble  # called in the writing thread, once per run of failures; "" when it is over
        self.changes = 0  # that were handed over
        self._waiting: dict[tuple[Any, ...], list[tuple[str, tuple[Any, ...]]]] = {}
        self._then: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._writing = False
        self._closing = False
        self._database: sqlite3.Connection | None = None  # the writing thread's
        self._prepare()
        self._file = _file(path)
        self._thread = threading.Thread(target=self._run, name="smb-state", daemon=True)
        self._thread.start()

    # --- reading, at the start ---

    def load(self) -> list[SavedSession]:
        with self._reading() as database:
            sessions = {
                (dialect, name, listener): SavedSession(
                    (dialect, name, listener), cursor, expires=expires, properties=properties
                )
                for dialect, name, listener, cursor, expires, properties in database.execute(
                    "SELECT dialect, name, listener, cursor, expires, properties FROM sessions"
                )
            }
            for dialect, name, listener, packed, keep, start, options in database.execute(
                "SELECT dialect, name, listener, filter, keep, start, options FROM subscriptions"
            ):
                session = sessions.get((dialect, name, listener))
                if session:
                    pattern = unpacked(packed)
                    session.subscriptions[pattern] = bool(keep), start
                    if options is not None:
                        session.options[pattern] = options
        return list(sessions.values())

    def load_retained(self) -> list[tuple[bytes, bytes, str]]:
        with self._reading() as database:
            return database.execute("SELECT topic, payload, about FROM retained").fetchall()

    def load_fact(self, name: str) -> int | None:
        """None if it was never saved."""
        with self._reading() as database:
            found = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            return int(found[0]) if found else None

    # --- changes: they return at once ---

    def save_session(self, key: SessionKey, cursor: int | None) -> None:
        sql = (
            "INSERT INTO sessions (dialect, name, listener, cursor) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET cursor = excluded.cursor"
        )
        self._put(("session", key), [(sql, (*key, cursor))])

    def save_mqtt(self, key: SessionKey, cursor: int | None, expires: int, properties: str) -> None:
        sql = (
            "INSERT INTO sessions (dialect, name, listener, cursor, expires, properties) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET cursor = excluded.cursor, expires = excluded.expires, "
            "properties = excluded.properties"
        )
        self._put(("session", key), [(sql, (*key, cursor, expires, properties))])

    def save_retained(self, topic: bytes, payload: bytes, about: str) -> None:
        sql = "INSERT OR REPLACE INTO retained (topic, payload, about) VALUES (?, ?, ?)"
        self._put(("retained", topic), [(sql, (topic, payload, about))])

    def drop_retained(self, topic: bytes) -> None:
        self._put(("retained", topic), [("DELETE FROM retained WHERE topic = ?", (topic,))])

    def save_fact(self, name: str, value: int) -> None:
        self._put(("fact", name), [("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value))])

    def drop_session(self, key: SessionKey) -> None:
        deletions = [(f"DELETE FROM {table} WHERE {SESSION}", key) for table in ("subscriptions", "sessions")]
        self._put(("drop", key), list(deletions))

    def save_subscription(
        self, key: SessionKey, pattern: Filter, keep: bool, start: int, options: str | None = None
    ) -> None:
        sql = (
            "INSERT INTO subscriptions (dialect, name, listener, filter, keep, start, options) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET keep = excluded.keep, start = excluded.start, options = excluded.options"
        )
        self._put(("subscription", key, pattern), [(sql, (*key, packed(pattern), keep, start, options))])

    def drop_subscription(self, key: SessionKey, pattern: Filter) -> None:
        sql = f"DELETE FROM subscriptions WHERE {SESSION} AND filter = ?"
        self._put(("subscription", key, pattern), [(sql, (*key, packed(pattern)))])

    def save_cursors(self, cursors: Iterable[tuple[SessionKey, int]]) -> None:
        sql = f"UPDATE sessions SET cursor = ? WHERE {SESSION}"
        for key, cursor in cursors:
            self._put(("cursor", key), [(sql, (cursor, *key))])

    def after(self, callback: Callable[[], None]) -> None:
        """Calls back, in the writing thread, when everything so far is on disk, or could not be written."""
        with self._changed:
            self._then.append(callback)
            self._changed.notify_all()

    # --- the sink's ledger ---

    def load_ledger(self) -> tuple[dict[str, int], int]:
        """The last batch of each query, oldest first, and the offset through which the log's notes are in it."""
        with self._reading() as database:
            batches = dict(database.execute("SELECT query, batch FROM ledger ORDER BY next_offset"))
            applied = database.execute("SELECT value FROM facts WHERE name = 'applied'").fetchone()
        return batches, applied[0] if applied else 0

    def save_batch(self, query: str, batch: int, next_offset: int) -> None:
        sql = (
            "INSERT INTO ledger (query, batch, next_offset) VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET batch = excluded.batch, next_offset = excluded.next_offset"
        )
        self._put(("batch", query), [(sql, (query, batch, next_offset))])

    def drop_batch(self, query: str) -> None:
        self._put(("batch", query), [("DELETE FROM ledger WHERE query = ?", (query,))])

    def save_applied(self, offset: int) -> None:
        sql = "INSERT INTO facts (name, value) VALUES ('applied', ?) ON CONFLICT DO UPDATE SET value = excluded.value"
        self._put(("applied",), [(sql, (offset,))])

    def flush(self, limit: float | None = None) -> bool:
        """Waits until everything so far is on disk; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, limit)

    def close(self, limit: float = 5.0) -> None:
        """Writes what waits, unless the disk refuses for too long."""
        self.flush(limit)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(limit)

    # --- the writing thread ---

    def _put(self, thing: tuple[Any, ...], statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        with self._changed:
            self.changes += 1
            self._waiting.pop(thing, None)  # the latest word goes last: a drop must not undo what follows it
            self._waiting[thing] = statements
            self._changed.notify_all()

    def _run(self) -> None:
        trouble = ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._then or self._closing)
                if self._closing:
                    break
                batch, self._waiting = self._waiting, {}
                then, self._then = self._then, []
                self._writing = True
            before, trouble = trouble, self._write(batch) if batch else trouble
            for callback in then:
                callback()
            with self._changed:
                if trouble:
                    newer = self._waiting
                    self._waiting = {thing: said for thing, said in batch.items() if thing not in newer} | newer
                self._writing = False
                self._changed.notify_all()
                if bool(trouble) != bool(before):
                    self._on_trouble(trouble)
                if trouble:
                    self._changed.wait_for(lambda: self._closing, RETRY)
        self._disconnect()

    def _write(self, batch: dict[tuple[Any, ...], list[tuple[str, tuple[Any, ...]]]]) -> str:
        """Empty, or why it could not be written. What no database takes (a number too large, say) is left out and
        told: it must not keep all else from being saved."""
        if _file(self._path) != self._file:  # another one knows nothing of what was saved, and its journal is not there
            return f"{self._path}: removed or replaced while the broker runs; put it back, or restart the broker"
        thing: tuple[Any, ...] = ()
        while batch:
            try:
                if self._database is None:
                    self._database = _connection(self._path)
                with self._database as database:
                    for thing, statements in batch.items():  # noqa: B007
                        for sql, values in statements:
                            database.execute(sql, values)
                break
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:  # else a new one would need room
                    self._disconnect()
                return f"{self._path}: {error}"
            except (OverflowError, ValueError, TypeError) as error:
                del batch[thing]
                self._on_trouble(f"{self._path}: left out, a {thing[0]}: {error}")
                self._on_trouble("")
        return ""

    def _disconnect(self) -> None:
        database, self._database = self._database, None
        if database:
            with suppress(sqlite3.Error):
                database.close()

    def _prepare(self) -> None:
        with self._reading() as database, database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                database.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
            database.execute(RETAINED)
            if version not in (0, VERSION):
                raise LogError("state_version", f"{self._path} has version {version}, this broker knows {VERSION}")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(_connection(self._path)) as database:
                yield database
        except sqlite3.Error as error:
            raise self.damaged(error) from error

    def damaged(self, error: Exception) -> LogError:
        return LogError("state", f"{self._path}: {error}; move it away to start without sessions")


def _connection(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=5.0)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"PRAGMA journal_size_limit = {MAX_JOURNAL}")
    except BaseException:
        database.close()
        raise
    return database


def _file(path: Path) -> tuple[int, int] | None:
    """Which one has that name; None: none has."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def packed(pattern: Filter) -> bytes:
    """A filter as bytes: levels separated by `/`, wildcards marked by NUL, which no literal holds."""
    return b"/".join(level if isinstance(level, bytes) else b"\0" + level.value.encode() for level in pattern)


def unpacked(data: bytes) -> Filter:
    marks: dict[bytes, FilterLevel] = {b"\0" + mark.value.encode(): mark for mark in (ANY, REST)}
    return tuple(marks.get(level, level) for level in data.split(b"/"))
