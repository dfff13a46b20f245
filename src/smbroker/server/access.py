"""Who comes in: rules and users from their files, logins, and what becomes of both when the files change.

Checking a password takes long on purpose, so it is done in a thread of its own, for a few at a time; who fails too
often has to wait, by address. What was proven a moment ago is remembered, so that HTTP need not prove it with each
request. SIGHUP reads the files again; if one of them is wrong or cannot be read, everything stays as it was.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_bytes, token_urlsafe
from typing import Final, TypeAlias

from smbroker.core.rights import Rights
from smbroker.model.errors import Refused, UsageError
from smbroker.model.grant import Grant
from smbroker.model.message import Dialect
from smbroker.model.rights import Identity, Rules, named_by
from smbroker.server import users as users_file
from smbroker.server.config import Config
from smbroker.server.gate import network_of
from smbroker.server.users import Users, token_hash

Answered: TypeAlias = Callable[[Identity | Refused], None]

QUEUE: Final = 32  # logins that may wait to be checked
PROVEN_FOR: Final = 300.0  # seconds that a password which was right need not be checked again
MAX_PROVEN: Final = 1_000
FAILURES: Final = 10  # wrong passwords of one address before it has to wait …
FORGIVEN: Final = 6.0  # … and the seconds after which one of them is forgotten
MAX_ADDRESSES: Final = 10_000
SESSION: Final = 12 * 3600.0  # seconds that a login of the page lasts
MAX_SESSIONS: Final = 10_000
LARGEST_FILE: Final = 4 << 20
DUMMY: Final = "scrypt:16384:8:1:" + "A" * 22 + "==:" + "A" * 43 + "="  # so that an unknown user takes as long


class Access:
    def __init__(self, config: Config) -> None:
        """Raises UsageError: one of the files is wrong."""
        self._rules_path = config.rights.rules
        self._users_path = users_path(config)
        self.users = Users()
        rules = None
        if self._rules_path:
            rules, self.users = self._read()
        self.rights = Rights(rules)
        self._checker = ThreadPoolExecutor(1, "passwords")
        self._waiting = 0
        self._key = token_bytes(32)
        self._proven: dict[bytes, tuple[float, Identity]] = {}
        self._failures: dict[str, tuple[float, float]] = {}  # how many, and when that was so
        self._sessions: dict[bytes, tuple[float, str, str]] = {}  # until when, user, proof

    @property
    def on(self) -> bool:
        return self.rights.on

    def close(self) -> None:
        self._checker.shutdown(wait=False, cancel_futures=True)

    # --- the files ---

    def _read(self) -> tuple[Rules, Users]:
        rules = read_rules(self._rules_path)
        return rules, users_file.read(self._users_path, missing=not self.users.all)

    def reload(self) -> None:
        """From here on the files count as they are now. Raises UsageError: then nothing has changed."""
        if not self._rules_path:
            raise UsageError("rules", "there is no rules file (rights.rules): nothing to read again")
        rules, users = self._read()
        self.users = users
        self._proven.clear()
        self._sessions = {key: one for key, one in self._sessions.items() if users.has(one[1], one[2])}
        self.rights.change(rules, self.holds)

    # --- who someone is ---

    def grant(self, dialect: Dialect, host: str, client: str | None = None, user: str | None = None) -> Grant:
        """The rights of someone who has shown no password; perhaps a certificate, which names the user."""
        return self.rights.grant(Identity(dialect, host, user, client))

    def holds(self, identity: Identity | None) -> bool:
        """Whether what the identity was proven by is still so. Users by certificate have no such proof."""
        if identity is None or identity.user is None or not identity.proof:
            return True
        return self.users.has(identity.user, identity.proof)

    def check(self, who: Identity, password: bytes, answered: Answered) -> None:
        """Whether `who` is the user that it names: calls back with the identity, or with why not; perhaps at once."""
        key = self._digest(who, password)
        proven = self._proven.get(key)
        if proven and proven[0] > time.monotonic() and self.holds(proven[1]):
            answered(proven[1])
            return
        refused = self._too_often(who.host)
        if refused is None and self._waiting >= QUEUE:
            refused = Refused("login_busy", "too many logins at once; try again")
        if refused:
            answered(refused)
            return
        user = self.users.all.get(who.user or "")
        stored = user.password if user and user.password else DUMMY
        known = bool(user and user.password)
        self._waiting += 1
        loop = asyncio.get_running_loop()
        done: Future[bool] = self._checker.submit(users_file.is_password, stored, password)
        done.add_done_callback(
            lambda found: _call(loop, partial(self._checked, found, known, who, stored, key, answered))
        )

    def _checked(
        self, found: "Future[bool]", known: bool, who: Identity, proof: str, key: bytes, answered: Answered
    ) -> None:
        self._waiting -= 1
        if found.cancelled() or found.exception() or not (found.result() and known):
            self._failed(who.host)
            answered(Refused("bad_password", "the user or the password is wrong"))
            return
        identity = Identity(who.dialect, who.host, who.user, who.client, proof)
        if not self.holds(identity):  # changed while it was checked
            answered(Refused("bad_password", "the user or the password is wrong"))
            return
        if len(self._proven) >= MAX_PROVEN:
            self._proven.clear()
        self._proven[key] = time.monotonic() + PROVEN_FOR, identity
        answered(identity)

    async def login(self, who: Identity, password: bytes) -> Identity:
        """Raises Refused."""
        told: asyncio.Future[Identity | Refused] = asyncio.get_running_loop().create_future()
        self.check(who, password, lambda outcome: None if told.done() else told.set_result(outcome))
        outcome = await told
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def by_token(self, host: str, token: str) -> Identity:
        """Raises Refused."""
        refused = self._too_often(host)
        if refused:
            raise refused
        proof = token_hash(token)
        user = self.users.by_token.get(proof)
        if user is None:
            self._failed(host)
            raise Refused("bad_token", "the token is not known")
        return Identity(Dialect.HTTP, host, user.name, None, proof)

    # --- the page's logins ---

    def begin_session(self, identity: Identity) -> str:
        """The secret that the browser shows from here on."""
        now = time.monotonic()
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions = {key: one for key, one in self._sessions.items() if one[0] > now}
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        secret = token_urlsafe(32)
        self._sessions[_known_by(secret)] = now + SESSION, identity.user or "", identity.proof
        return secret

    def by_session(self, host: str, secret: str) -> Identity | None:
        until, user, proof = self._sessions.get(_known_by(secret), (0.0, "", ""))
        if until <= time.monotonic() or not self.users.has(user, proof):
            return None
        return Identity(Dialect.HTTP, host, user, None, proof)

    def end_session(self, secret: str) -> None:
        self._sessions.pop(_known_by(secret), None)

    # --- guessing ---

    def _too_often(self, host: str) -> Refused | None:
        if self._left(host) < FAILURES:
            return None
        return Refused("too_many_logins", "too many wrong passwords from this address; wait a minute")

    def _left(self, host: str) -> float:
        """Failures of the address that are not forgotten yet."""
        count, when = self._failures.get(network_of(host), (0.0, 0.0))
        return max(0.0, count - (time.monotonic() - when) / FORGIVEN)

    def _failed(self, host: str) -> None:
        key, count = network_of(host), self._left(host) + 1
        if key not in self._failures and len(self._failures) >= MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        self._failures.pop(key, None)
        self._failures[key] = count, time.monotonic()

    def _digest(self, who: Identity, password: bytes) -> bytes:
        """Of all that an identity consists of; the password is not kept."""
        parts = (who.dialect, who.host, who.user or "", "\0" if who.client is None else "=" + who.client)
        made = blake2b(len(password).to_bytes(4, "big") + password, key=self._key)
        for part in parts:
            raw = part.encode("utf-8", "surrogatepass")
            made.update(len(raw).to_bytes(4, "big") + raw)
        return made.digest()


def read_rules(name: str) -> Rules:
    """Raises UsageError."""
    from smbroker.model.rules import rules as rules_of  # few need it, and the broker is to be ready soon

    path = Path(name)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError("rules", f"{path}: larger than {LARGEST_FILE} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError("rules", f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError("rules", f"{path}:1: not UTF-8") from error
    return rules_of(text, str(path))


def certified(transport: asyncio.BaseTransport) -> str | None:
    """The user that the client's certificate names; None without one that was found good."""
    return named_by(transport.get_extra_info("peercert"))


def users_path(config: Config) -> Path:
    return Path(config.rights.users) if config.rights.users else Path(config.data) / "users.toml"


def _known_by(secret: str) -> bytes:
    return blake2b(secret.encode("utf-8", "surrogatepass")).digest()


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the broker has stopped meanwhile
        pass
