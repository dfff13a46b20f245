"""The files of rules and users: broken, empty, gone, unreadable; and without rules at all."""

import resource
import socket
import subprocess
from pathlib import Path

import pytest

from flow.house import BIN, LIMIT, Broker
from flow.mqtt import Mqtt
from rights.guarded import SECRETS, as_boss, as_user, guarded, login, reload, write_users
from smbroker.dialects.mqtt.packets import Connect
from smbroker.model.errors import UsageError
from smbroker.server import users as users_file
from smbroker.server.access import Access
from smbroker.server.config import Config, RightsConfig
from smbroker.server.users import User, Users
from web.calls import get, post

KEPT = "what was read before stays in force"
BROKEN = ["", "# nothing\n", "[[allow]]\n", '[[allow]]\nanyone = true\ntopics = "#"\nnot toml', "\xff"]


@pytest.mark.parametrize("rules", [*BROKEN, None])
def test_broken_rules_are_refused_with_their_place(tmp_path: Path, rules: str | None) -> None:
    file = tmp_path / "rules.toml"
    if rules is not None:
        file.write_bytes(rules.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        Access(Config(data=str(tmp_path), rights=RightsConfig(rules=str(file))))
    assert caught.value.text.startswith(f"{file}:")


def test_a_broker_with_broken_rules_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text("")
    call = [BIN / "smbbroker", "--data", tmp_path, "--rules", file, "--listen", "udp://127.0.0.1:0"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert f"{file}:1: there is no [[allow]]" in done.stderr
    assert "Traceback" not in done.stderr
    assert "listening" not in done.stdout


def check_secrets(broker: Broker) -> None:
    """The rules that it was started with are in force."""
    assert post(broker, "secret/x", b"m", **as_user("ann")).status == 403
    assert post(broker, "open/x", b"m", **as_user("ann")).status == 200
    assert post(broker, "secret/x", b"m", **as_boss()).status == 200


def test_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    with guarded(tmp_path, SECRETS, kinds=("web",)) as broker:
        for rules in BROKEN:
            (tmp_path / "rules.toml").write_bytes(rules.encode("latin-1"))
            reload(broker, KEPT)
            check_secrets(broker)
        assert broker.err.has("rules.toml:1: there is no [[allow]]")
        (tmp_path / "rules.toml").unlink()
        reload(broker, KEPT)
        check_secrets(broker)
        (tmp_path / "rules.toml").write_text('[[allow]]\nuser = "boss"\ntopics = "#"\n')
        users = (tmp_path / "users.toml").read_text()
        for text in ("not toml", "[users.ann]\npassword = 'plain'\n", "[users.'a/b']\n", "x = 1\n"):
            (tmp_path / "users.toml").write_text(text)
            reload(broker, KEPT)
            check_secrets(broker)
        (tmp_path / "users.toml").unlink()
        reload(broker, KEPT)
        check_secrets(broker)
        (tmp_path / "users.toml").write_text(users)
        reload(broker)
        assert post(broker, "open/x", b"m", **as_user("ann")).status == 403
        assert not broker.err.has("plain"), "what is wrong is told without it"


def test_a_reload_without_descriptors_changes_nothing(tmp_path: Path) -> None:
    """Neither file can be opened: the rules stay, and nobody gets in by that."""
    with guarded(tmp_path, SECRETS, kinds=("mqtt", "web")) as broker:
        ann = login(broker, "ann", version=5)
        assert get(broker, "/v1/stats", **as_boss()).status == 200
        pid = broker.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))  # numbers below 3 are taken: nothing can be opened
        try:
            (tmp_path / "rules.toml").write_text('[[allow]]\nanyone = true\ntopics = "#"\n')
            reload(broker, KEPT)
            assert ann.publish("secret/x", b"m", 1).reason == 0x87  # type: ignore[union-attr]
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        check_secrets(broker)
        reload(broker)
        assert ann.publish("secret/x", b"m", 1).reason == 0  # type: ignore[union-attr]


def test_without_rules_strangers_may_do_nothing() -> None:
    """Over an address of this machine that is not loopback: whoever comes by it is as good as a stranger."""
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    options = [
        word for kind in ("udp", "padded", "typed", "mqtt", "web") for word in ("--listen", f"{kind}://{address}:0")
    ]
    with Broker(*options, kinds=()) as broker:

        def tcp(kind: str) -> socket.socket:
            return socket.create_connection((address, broker.ports[kind]), timeout=LIMIT)

        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.settimeout(LIMIT)
        for asked in (b"S|#", b"P|a|m"):
            udp.sendto(asked, (address, broker.ports["udp"]))
            assert udp.recv(100).startswith(b"ERROR: ")
        assert tcp("padded").recv(1) == b""
        typed = tcp("typed")
        typed.sendall(b"T1".ljust(11, b"\0"))
        assert typed.recv(1) == b""
        for version, code in ((4, 5), (5, 0x87)):
            mqtt = tcp("mqtt")
            mqtt.sendall(Connect(version, "c").encode())
            assert mqtt.recv(4)[3] == code
        for path in ("/v1/stats", "/v1/messages", "/v1/topics", "/v1/clients", "/metrics", "/v1/subscribe", "/v1/live"):
            web = tcp("web")
            web.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            assert web.recv(1000).startswith(b"HTTP/1.1 403"), path
        for sock in (udp, typed):
            sock.close()


def own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing: only asks which address would be used
        except OSError:
            return None
        address: str = sock.getsockname()[0]
        return None if address.startswith("127.") else address


# --- the users file by itself ---


def test_users_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_users(tmp_path, "ann", "boss")
    found = users_file.read(tmp_path / "users.toml")
    assert set(found.all) == {"ann", "boss"}
    assert users_file.is_password(found.all["ann"].password, b"password of ann")
    assert not users_file.is_password(found.all["ann"].password, b"password of bob")
    assert (tmp_path / "users.toml").stat().st_mode & 0o777 == 0o600
    users_file.write(tmp_path / "again.toml", found)
    assert (tmp_path / "again.toml").read_text() == (tmp_path / "users.toml").read_text()


@pytest.mark.parametrize("name", ["#", "+", "a/b", "a b", "a:b", "a\nb", "", "$a", "*", "%u", 'a"b', "x" * 65])
def test_a_user_s_name_is_plain(name: str) -> None:
    with pytest.raises(UsageError):
        users_file.check_name(name)


def test_hashes_are_not_shown() -> None:
    user = User("ann", "scrypt:hash", {"t": "sha256:hash"})
    assert "hash" not in repr(user)
    assert "hash" not in repr(Users.of({"ann": user}))


@pytest.mark.parametrize(
    "stored",
    ["", "plain", "scrypt:16384:8:1:AA==", "scrypt:3:8:1:AA==:" + "A" * 44, "scrypt:1048576:32:1:AA==:" + "A" * 44],
)
def test_what_is_no_hash_is_no_password(stored: str) -> None:
    assert not users_file.is_password(stored, b"")
    assert not users_file.is_password(stored, b"plain")


def test_rules_off_ignores_names(tmp_path: Path) -> None:
    with Broker("--no-log", kinds=("mqtt",), data=tmp_path) as broker:
        assert Mqtt(broker, user="anyone", password=b"anything").connack.code == 0
