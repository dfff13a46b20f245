"""The programs with rules: users, passwords and tokens from files; `smb user` and `smb rights`."""

import subprocess
from pathlib import Path

import pytest

from flow.house import BIN, Broker
from rights.guarded import SECRETS, TOKEN, guarded, password, write_users
from smbroker.server import users as users_file

LIMIT = 60


def smb(*words: "str | Path", text: str = "") -> "subprocess.CompletedProcess[str]":
    name, *rest = words
    return subprocess.run([BIN / name, *rest], input=text, capture_output=True, text=True, timeout=LIMIT)


def test_users_are_made_changed_and_removed(tmp_path: Path) -> None:
    data = ("--data", tmp_path)
    assert smb("smb", "user", "add", "ann", *data, text="a long secret\n").returncode == 0
    assert smb("smb", "user", "add", "ann", *data, text="a long secret\n").returncode == 2, "there is one already"
    assert smb("smb", "user", "add", "a/b", *data, text="a long secret\n").returncode == 2
    assert smb("smb", "user", "add", "bob", *data, text="short\n").returncode == 2
    made = smb("smb", "user", "token", "ann", "phone", *data)
    token = made.stdout.strip()
    assert len(token) > 40
    assert token not in made.stderr
    listed = smb("smb", "user", "ls", *data)
    assert listed.stdout == "ann  password, token phone\n"
    users = users_file.read(tmp_path / "users.toml")
    assert users.by_token[users_file.token_hash(token)].name == "ann"
    assert users_file.is_password(users.all["ann"].password, b"a long secret")
    assert smb("smb", "user", "passwd", "ann", *data, text="another secret").returncode == 0
    assert users_file.is_password(users_file.read(tmp_path / "users.toml").all["ann"].password, b"another secret")
    assert smb("smb", "user", "rm", "ann", "phone", *data).returncode == 0
    assert smb("smb", "user", "ls", *data).stdout == "ann  password\n"
    assert smb("smb", "user", "rm", "ann", *data).returncode == 0
    assert smb("smb", "user", "rm", "ann", *data).returncode == 2
    assert "secret" not in (tmp_path / "users.toml").read_text()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("ann", "publish", "open/x"), 0, ":2 [[allow]]"),
        (("ann", "subscribe", "secret/x"), 1, ":6 [[deny]]"),
        (("anonymous", "replay", "secret/x"), 1, ":6 [[deny]]"),
        (("boss", "replay", "secret/x"), 0, ":2 [[allow]]"),
        (("boss", "publish", "$SYS/x"), 1, "the broker's own"),
        (("boss", "subscribe", "$other"), 1, "no rule"),
        (("ann", "subscribe", "#"), 0, "those of its topics that are allowed"),
        (("ann", "replay", "secret/+"), 1, "none of its topics"),
    ],
)
def test_the_rule_that_decides_is_named(tmp_path: Path, words: tuple[str, ...], status: int, said: str) -> None:
    from smbroker.cli import rights

    write_users(tmp_path, "ann", "boss")
    (tmp_path / "rules.toml").write_text(SECRETS)
    from io import BytesIO

    from smbroker.cli import terminal

    out = BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "write", out.write)
        asked = ["check", *words, "--rules", str(tmp_path / "rules.toml"), "--data", str(tmp_path)]
        assert rights.main(asked) == status
    assert said in out.getvalue().decode()


def test_the_programs_log_in(tmp_path: Path) -> None:
    rules = '[[allow]]\nuser = ["ann", "boss"]\ntopics = ["#", "$SYS/#"]\n[[deny]]\nuser = "ann"\ntopics = "secret/#"\n'
    secret, token = tmp_path / "secret", tmp_path / "token"
    secret.write_bytes(password("ann") + b"\n")
    token.write_text(TOKEN + "\n")
    ann = ("--user", "ann", "--password-file", secret)
    with guarded(tmp_path, rules, kinds=("mqtt", "web")) as broker:
        target, url = ("--dialect", "mqtt", "-p", str(broker.ports["mqtt"])), web(broker)
        refused = smb("smbpublish", *target, "a/b", "hello")
        assert refused.returncode == 1
        assert "--user" in refused.stderr
        secret.write_bytes(password("bob"))
        refused = smb("smbpublish", *target, "--user", "bob", "--password-file", secret, "a/b", "hello")
        assert "nothing is allowed to bob" in refused.stderr
        secret.write_bytes(password("ann") + b"\n")
        assert smb("smbpublish", *target, *ann, "a/b", "hello").returncode == 0
        refused = smb("smbpublish", *target, *ann, "secret/b", "hello")
        assert (refused.returncode, "not allowed to publish" in refused.stderr) == (1, True)
        for who in (ann, ("--token-file", token), ("--token-file", tmp_path / "pipeline.token")):
            tail = smb("smb", "tail", "a/#", "--from", "earliest", "--limit", "1", "--url", url, *who)
            assert "a/b hello" in tail.stdout
        assert smb("smb", "tail", "--from", "earliest", "--limit", "1", "--url", url).returncode == 1
        assert smb("smb", "top", "--count", "1", "--url", url, "--token-file", token).returncode == 0
        assert smb("smb", "tail", "--url", url, "--user", "ann", "--token-file", token).returncode == 2
        assert smb("smbpublish", "--user", "ann", "a", "b").returncode == 2, "semicolon knows no users"


def web(broker: Broker) -> str:
    return f"http://127.0.0.1:{broker.ports['web']}"
