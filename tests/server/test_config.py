"""The settings: what a file says is what there is, and every error names its key."""

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smbroker.model.errors import UsageError
from smbroker.server import config
from smbroker.server.config import Config, as_table, from_table, load


def loaded(folder: Path, text: str) -> Config:
    file = folder / "smb.toml"
    file.write_text(text, encoding="utf-8")
    return load(file)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as raised:
        loaded(folder, text)
    assert str(folder / "smb.toml") in raised.value.text, "the file is named"
    assert raised.value.code == "config"
    assert "\n" not in raised.value.text
    return raised.value.text


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, "") == Config()


def test_the_defaults_are_those_of_the_interface() -> None:
    made = Config()
    assert made.listen[:3] == ("udp://127.0.0.1:8080", "padded://127.0.0.1:1379", "typed://127.0.0.1:12345")
    assert all("://127.0.0.1:" in listener for listener in made.listen), "on loopback only"
    assert made.max_payload == 16 * 1024 * 1024
    assert made.data == "smb-data"
    assert not made.quiet
    assert not made.no_log
    assert (made.semicolon.max_subscribers, made.semicolon.max_message, made.semicolon.max_topic) == (100, 500, 128)
    assert made.semicolon.prefix_match is False
    assert (made.udp.max_subscriptions, made.udp.max_subscriptions_per_address) == (200_000, 20_000)
    assert (made.udp.lease, made.udp.unreachable_limit) == ("auto", 5)


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    made = loaded(
        tmp_path,
        """
        listen = ["udp://127.0.0.1:9000", "tcp://[::1]:0"]
        max_payload = 1_000
        quiet = true
        [semicolon]
        prefix_match = true
        [udp]
        lease = 1.5
        unreachable_limit = 3
        """,
    )
    assert made.listen == ("udp://127.0.0.1:9000", "tcp://[::1]:0")
    assert (made.max_payload, made.quiet) == (1_000, True)
    assert made.semicolon == dataclasses.replace(Config().semicolon, prefix_match=True)
    assert made.udp == dataclasses.replace(Config().udp, lease=1.5, unreachable_limit=3)
    assert made.tcp == Config().tcp


@pytest.mark.parametrize(
    ("text", "lease"), [('"auto"', "auto"), ("0", 0), ("60", 60), ("0.5", 0.5), ("1e3", 1_000), ("inf", math.inf)]
)
def test_a_lease_is_a_number_or_auto(tmp_path: Path, text: str, lease: Any) -> None:
    assert loaded(tmp_path, f"[udp]\nlease = {text}").udp.lease == lease


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("colour = 1", "colour"),
        ("[udp]\nleese = 1", "udp.leese"),
        ("[semicolon]\nmax_topics = 1", "semicolon.max_topics"),
        ("[nosuch]", "nosuch"),
        ("[nosuch]\nkey = 1", "nosuch"),
        ("udp.lease.seconds = 1", "udp.lease"),
        ("max_payload = true", "max_payload"),
        ('max_payload = "16 MiB"', "max_payload"),
        ("max_payload = 1.5", "max_payload"),
        ("max_payload = -1", "max_payload"),
        ("max_payload = 2026-11-15", "max_payload"),
        ("quiet = 1", "quiet"),
        ('quiet = "yes"', "quiet"),
        ("data = 1", "data"),
        ('listen = "udp://127.0.0.1:8080"', "listen"),
        ("listen = [8080]", "listen"),
        ("[semicolon]\nprefix_match = 1", "semicolon.prefix_match"),
        ('[udp]\nlease = "never"', "udp.lease"),
        ("[udp]\nlease = true", "udp.lease"),
        ("[udp]\nlease = -0.5", "udp.lease"),
        ("[udp]\nlease = nan", "udp.lease"),
        ("[udp]\nlease = []", "udp.lease"),
        ("[udp]\nunreachable_limit = 0.5", "udp.unreachable_limit"),
        ("udp = 1", "udp"),
        ("[[udp]]", "udp"),
    ],
)
def test_an_error_names_the_key(tmp_path: Path, text: str, key: str) -> None:
    said = refused(tmp_path, text).removeprefix(str(tmp_path / "smb.toml: "))
    assert said.removeprefix("unknown key ").startswith((key + ";", key + " must")), said


def test_an_unknown_key_is_told_with_what_may_be_meant(tmp_path: Path) -> None:
    assert "unknown key udp.leese; did you mean lease?" in refused(tmp_path, "[udp]\nleese = 1")
    assert "unknown key retain_age; it belongs below [log]" in refused(tmp_path, "retain_age = 1")
    assert "unknown key udp.retain_age; it belongs below [log]" in refused(tmp_path, "[udp]\nretain_age = 1")
    said = refused(tmp_path, "[udp]\nxyz = 1")
    for key in ("lease", "max_subscriptions", "max_subscriptions_per_address", "unreachable_limit"):
        assert key in said


@pytest.mark.parametrize("text", ["listen = [", "a = 1\na = 2", "= 1", "[udp\n", "max_payload = 1\nmax_payload = 2"])
def test_what_is_no_toml_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    assert "line" in refused(tmp_path, text) or "end of document" in refused(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(UsageError) as raised:
            load(path)
        assert raised.value.text.startswith(f"{path}: ")


def test_a_file_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "smb.toml").write_bytes('data = "größe"'.encode())
    program = "import sys, pathlib; from smbroker.server import config; "
    program += "print(ascii(config.load(pathlib.Path(sys.argv[1])).data))"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program, str(tmp_path / "smb.toml")]
    result = subprocess.run(command, env=os.environ | plain, capture_output=True, check=True)
    assert result.stdout.decode().strip() == ascii("größe")


def test_what_is_not_utf8_is_told(tmp_path: Path) -> None:
    (tmp_path / "smb.toml").write_bytes('data = "größe"'.encode("latin-1"))
    with pytest.raises(UsageError, match="utf-8"):
        load(tmp_path / "smb.toml")


def test_a_table_of_all_settings_gives_them_back() -> None:
    table = as_table(Config())
    assert from_table(Config, table, "") == Config()
    assert table["listen"] == list(Config().listen)
    assert table["udp"]["lease"] == "auto"


def every_part() -> list[type]:
    parts = [Config]
    for part in parts:
        defaults = part()
        parts += [
            type(value)
            for each in dataclasses.fields(part)
            if dataclasses.is_dataclass(value := getattr(defaults, each.name))
        ]
    return parts


@pytest.mark.parametrize("part", every_part(), ids=lambda part: part.__name__)
def test_every_setting_can_be_read_from_a_file_in_its_own_type(part: Any) -> None:
    for key, value in as_table(part()).items():
        assert getattr(from_table(part, {key: value}, ""), key) == getattr(part(), key)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().udp.lease = 1  # type: ignore[misc]


def test_an_error_of_a_part_is_told_with_the_whole_name() -> None:
    with pytest.raises(UsageError, match=r"^unknown key udp\.x; "):
        config.from_table(config.UdpConfig, {"x": 1}, "udp.")
