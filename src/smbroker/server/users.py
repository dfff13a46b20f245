"""The users file: names, with hashes of passwords and tokens. Written by `smb user`, read by the broker.

    [users.ann]
    password = "scrypt:16384:8:1:SALT:HASH"
    tokens = { phone = "sha256:HASH" }

A password is hashed so that guessing is slow; a token is long and random, so that a plain hash does. The file is
written anew and put in place at once, readable for its owner only.
"""

import re
import tomllib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, field, replace
from hashlib import scrypt, sha256
from hmac import compare_digest
from pathlib import Path
from secrets import token_bytes, token_urlsafe
from typing import Any

from smbroker.model.errors import UsageError
from smbroker.model.rights import is_plain
from smbroker.server import private

COST, BLOCK, LANES = 1 << 14, 8, 1  # scrypt's n, r and p: 16 MiB and some 50 ms
MAX_MEMORY = 1 << 28  # bytes that a file may ask for
LONGEST_NAME, LONGEST_PASSWORD = 64, 1_024
PLACE = re.compile(r"\(at line (\d+), column \d+\)")
HEADER = (
    "# Users and the hashes of their passwords and tokens. Change it with `smb user`; then send the broker SIGHUP.\n"
)


@dataclass(frozen=True, slots=True)
class User:
    name: str
    password: str = field(default="", repr=False)  # its hash; empty: none
    tokens: dict[str, str] = field(default_factory=dict, repr=False)  # hashes, by name

    def has(self, proof: str) -> bool:
        """Whether a login that was proven by this is still one."""
        return bool(proof) and (proof == self.password or proof in self.tokens.values())


@dataclass(frozen=True, slots=True)
class Users:
    all: dict[str, User] = field(default_factory=dict)
    by_token: dict[str, User] = field(default_factory=dict, repr=False)  # by its hash

    @classmethod
    def of(cls, users: dict[str, User]) -> "Users":
        return cls(users, {token: user for user in users.values() for token in user.tokens.values()})

    def has(self, name: str, proof: str) -> bool:
        user = self.all.get(name)
        return user is not None and user.has(proof)


def read(path: Path, *, missing: bool = False) -> Users:
    """Raises UsageError. With `missing` a file that is not there has no users."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if missing:
            return Users()
        raise UsageError("users", f"{path}: there is no such file; smb user add makes it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("users", f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
    return parsed(text, str(path))


def parsed(text: str, name: str) -> Users:
    """What is wrong is told by the name of the user, never with a hash."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = PLACE.search(str(error))
        raise UsageError("users", f"{name}:{place[1] if place else 1}: not TOML; smb user writes this file") from error
    users = table.get("users", {})
    if set(table) - {"users"} or not isinstance(users, dict):
        raise UsageError("users", f"{name}:1: there must be tables [users.NAME] and nothing else")
    return Users.of({user: _user(user, about, f"{name}:{_line(text, user)}") for user, about in users.items()})


def _line(text: str, user: str) -> int:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() in (f"[users.{user}]", f'[users."{user}"]'):
            return number
    return 1


def _user(name: str, about: Any, place: str) -> User:
    check_name(name, place)
    if not isinstance(about, dict) or set(about) - {"password", "tokens"}:
        raise UsageError("users", f"{place}: the user {name} has password and tokens, and nothing else")
    password, tokens = about.get("password", ""), about.get("tokens", {})
    if not isinstance(password, str) or (password and _parts(password) is None):
        raise UsageError("users", f"{place}: the password of {name} is no hash that smb user made")
    if not isinstance(tokens, dict) or not all(isinstance(one, str) and _is_token(one) for one in tokens.values()):
        raise UsageError("users", f"{place}: a token of {name} is no hash that smb user made")
    return User(name, password, dict(tokens))


def check_name(name: str, place: str = "user") -> None:
    """A name can be a level of a topic, and stand before the colon of HTTP's basic authentication."""
    if not is_plain(name) or len(name) > LONGEST_NAME or set(name) & set(" :\"'\\*%"):
        shown = name if name.isprintable() else repr(name)
        rule = f"a name has 1 to {LONGEST_NAME} printable characters, without spaces, quotes and / + # : * % $"
        raise UsageError("users", f"{place}: {shown[:100]}: {rule}")


def write(path: Path, users: Users) -> None:
    """Raises UsageError."""
    lines = [HEADER]
    for name in sorted(users.all):
        user = users.all[name]
        lines.append(f'[users."{name}"]\n')
        if user.password:
            lines.append(f'password = "{user.password}"\n')
        if user.tokens:
            listed = ", ".join(f'"{token}" = "{value}"' for token, value in sorted(user.tokens.items()))
            lines.append(f"tokens = {{ {listed} }}\n")
        lines.append("\n")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        private.write(path, "".join(lines))
    except OSError as error:
        raise UsageError("users", f"{path}: {error.strerror}") from error


# --- passwords and tokens ---


def with_password(user: User, password: str) -> User:
    return replace(user, password=hashed(password.encode()))


def with_token(user: User, name: str) -> tuple[User, str]:
    """The user with a new token, and that token: it is not to be had again."""
    token = token_urlsafe(32)
    return replace(user, tokens={**user.tokens, name: token_hash(token)}), token


def hashed(password: bytes) -> str:
    salt = token_bytes(16)
    made = scrypt(password, salt=salt, n=COST, r=BLOCK, p=LANES, maxmem=MAX_MEMORY, dklen=32)
    return f"scrypt:{COST}:{BLOCK}:{LANES}:{b64encode(salt).decode()}:{b64encode(made).decode()}"


def is_password(stored: str, password: bytes) -> bool:
    """Takes long, on purpose."""
    parts = _parts(stored)
    if parts is None or len(password) > LONGEST_PASSWORD:
        return False
    cost, block, lanes, salt, expected = parts
    made = scrypt(password, salt=salt, n=cost, r=block, p=lanes, maxmem=MAX_MEMORY, dklen=len(expected))
    return compare_digest(made, expected)


def token_hash(token: str) -> str:
    return f"sha256:{sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _is_token(stored: str) -> bool:
    return re.fullmatch(r"sha256:[0-9a-f]{64}", stored) is not None


def _parts(stored: str) -> tuple[int, int, int, bytes, bytes] | None:
    found = re.fullmatch(r"scrypt:(\d{1,7}):(\d{1,2}):(\d{1,2}):([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)", stored)
    if not found:
        return None
    cost, block, lanes = int(found[1]), int(found[2]), int(found[3])
    try:
        salt, made = b64decode(found[4], validate=True), b64decode(found[5], validate=True)
    except (Base64Error, ValueError):
        return None
    sound = cost > 1 and not cost & (cost - 1) and block and 1 <= lanes <= 16 and 256 * cost * block <= MAX_MEMORY
    return (cost, block, lanes, salt, made) if sound and 16 <= len(made) <= 64 else None
