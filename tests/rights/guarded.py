"""A broker with rules and users, and callers who log in.

with guarded(tmp_path, RULES) as broker:
    ann = login(broker, "ann", version=5)          MQTT, with ann's password
    get(broker, "/v1/messages", **as_user("ann"))
    change(broker, tmp_path, RULES + …)            new rules, in force when this returns
"""

import signal
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

from flow.house import Broker, wait_for
from flow.mqtt import Mqtt
from smbroker.server import users as users_file
from smbroker.server.users import User, Users

KINDS = ("udp", "padded", "typed", "mqtt", "tcp", "web")
NAMES = ("ann", "bob", "boss")
TOKEN = "boss-token-0123456789"

# Everybody may everything but what is secret, which only boss may.
SECRETS = """
[[allow]]
anyone = true
topics = ["#", "$SYS/#"]

[[deny]]
anonymous = true
user = ["ann", "bob"]
topics = "secret/#"
"""
# … and nobody that is not named may anything.
CLOSED = """
[[allow]]
user = ["ann", "bob", "boss"]
topics = "#"
"""


@cache
def _hash(name: str) -> str:
    return users_file.hashed(password(name))


def password(name: str) -> bytes:
    return f"password of {name}".encode()


def write_users(folder: Path, *names: str) -> None:
    users = {name: User(name, _hash(name)) for name in names}
    if "boss" in users:
        users["boss"] = User("boss", _hash("boss"), {"t": users_file.token_hash(TOKEN)})
    users_file.write(folder / "users.toml", Users.of(users))


def guarded(folder: Path, rules: str = SECRETS, *options: str, kinds: tuple[str, ...] = KINDS) -> Broker:
    write_users(folder, *NAMES)
    (folder / "rules.toml").write_text(rules)
    return Broker("--rules", str(folder / "rules.toml"), *options, kinds=kinds, data=folder)


def reload(broker: Broker, word: str = "SIGHUP: rules and users read again") -> None:
    """Sends SIGHUP and waits until the broker has said what came of it."""
    said = sum(word in line for line in broker.err.all)
    broker.signal(signal.SIGHUP)
    wait_for(lambda: sum(word in line for line in broker.err.all) > said, f"{word}: {broker.err.all[-5:]}", 30)


def change(broker: Broker, folder: Path, rules: str) -> None:
    (folder / "rules.toml").write_text(rules)
    reload(broker)


def login(broker: Broker, name: str, client: str = "", **more: Any) -> Mqtt:
    made = Mqtt(broker, client, user=name, password=password(name), **more)
    assert made.connack.code == 0, made.connack
    return made


def as_user(name: str, secret: bytes | None = None) -> dict[str, str]:
    pair = name.encode() + b":" + (password(name) if secret is None else secret)
    return {"authorization": f"Basic {b64encode(pair).decode()}"}


def as_boss() -> dict[str, str]:
    return {"authorization": f"Bearer {TOKEN}"}
