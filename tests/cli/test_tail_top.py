"""`smb tail` and `smb top`, as people run them, against a real broker."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.programs import run, started
from flow.house import Broker, wait_for
from web.calls import KINDS, get, post, post_lines


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(kinds=KINDS) as made:
        yield made


def url(broker: Broker) -> str:
    return f"http://127.0.0.1:{broker.ports['web']}"


def streams(broker: Broker) -> int:
    found: int = get(broker, "/v1/stats").json["streams"]
    return found


# --- tail ---


def test_tail_prints_what_the_filter_wants_from_now_on(broker: Broker) -> None:
    post(broker, "tail/a", b"before")
    with started("smb", "tail", "tail/+", "--url", url(broker)) as program:
        wait_for(lambda: streams(broker) == 1)
        post_lines(broker, {"topic": "other", "payload": "no"}, {"topic": "tail/a", "payload": "21.5"})
        program.expect_line(b" tail/a 21.5", "stdout")
        program.interrupt()
        assert program.ended() == 0


def test_tail_begins_with_history_and_ends_after_so_many(broker: Broker) -> None:
    post_lines(broker, *({"topic": "old/a", "payload": f"{n}"} for n in range(5)))
    said = run("smb", "tail", "old/a", "--from", "earliest", "--limit", 3, "--url", url(broker))
    assert [line.split()[-1] for line in said.stdout.splitlines()] == [b"0", b"1", b"2"]
    assert said.returncode == 0


def test_tail_and_top_take_data_and_the_address_from_the_settings(broker: Broker, tmp_path: Path) -> None:
    config = tmp_path / "smb.toml"
    config.write_text(f'listen = ["mqtt://127.0.0.1:1883", "web://0.0.0.0:{broker.ports["web"]}"]\n')
    options = ["--config", str(config), "--data", str(tmp_path)]
    post(broker, "set/a", b"1")
    said = run("smb", "tail", "set/a", "--from", "earliest", "--limit", 1, *options)
    assert said.stdout.endswith(b" set/a 1\n"), said.stderr
    assert run("smb", "top", "--count", 1, "--every", 1, *options).returncode == 0
    config.write_text('listen = ["mqtt://127.0.0.1:1883"]\n')
    said = run("smb", "tail", *options)
    assert (said.returncode, b"there is no web listener\n" in said.stderr) == (2, True)


def test_tail_shows_strangers_words_escaped_or_as_json(broker: Broker) -> None:
    post(broker, "odd/%1B", b"\x1b[31m\xff")
    said = run("smb", "tail", "odd/+", "--from", "earliest", "--limit", 1, "--url", url(broker))
    assert said.stdout.rstrip().endswith(rb"odd/\x1b \x1b[31m\xff")
    said = run("smb", "tail", "odd/+", "--from", "earliest", "--limit", 1, "--json", "--url", url(broker))
    assert b'"payload_base64": "G1szMf8="' in said.stdout or b'"payload_base64": ' in said.stdout
    assert b"\x1b" not in said.stdout


def test_tail_misses_nothing_while_the_broker_restarts() -> None:
    with Broker(kinds=("web",)) as first:
        port, data = first.ports["web"], first.data
        post(first, "a", b"0")
        with started("smb", "tail", "--from", "earliest", "--url", url(first)) as program:
            program.expect_line(b" a 0", "stdout")
            first.stop()
            listen = ("--listen", f"web://127.0.0.1:{port}")
            with Broker(*listen, kinds=(), data=data) as second:
                post_lines(second, *({"topic": "a", "payload": f"{n}"} for n in (1, 2)))
                program.expect_line(b" a 1", "stdout")
                program.expect_line(b" a 2", "stdout")
            program.interrupt()
            assert program.ended() == 0


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("tail", "a/#/b"), 2, b"# can only be the last level"),
        (("tail", "--limit", "0"), 2, b"whole number"),
        (("tail", "--url", "ftp://x"), 1, b"http://127.0.0.1:8090"),
        (("tail", "--url", "http://127.0.0.1:1"), 1, b"is the broker running?"),
        (("top", "--url", "http://127.0.0.1:1"), 1, b"is the broker running?"),
        (("top", "--every", "x"), 2, b"whole number"),
    ],
)
def test_mistakes_are_explained(words: tuple[str, ...], status: int, text: bytes) -> None:
    said = run("smb", *words)
    assert (said.returncode, text in said.stderr) == (status, True), said.stderr


def test_an_offset_that_is_none_is_explained(broker: Broker) -> None:
    said = run("smb", "tail", "--from", "yesterday", "--url", url(broker))
    assert (said.returncode, said.stdout) == (1, b"")
    assert b"from must be a whole number" in said.stderr


# --- top ---


def test_top_shows_rates_topics_and_clients(broker: Broker) -> None:
    peer = broker.udp()
    peer.send(b"stop/#")
    done = threading.Event()

    def speak() -> None:
        while not done.is_set():
            for number in range(10):
                post(broker, "top/busy", b"%d" % number)
            peer.send(b"ptop/quiet\x1b;x")

    speaker = threading.Thread(target=speak)
    speaker.start()
    try:
        said = run("smb", "top", "--every", 1, "--count", 1, "--url", url(broker))
    finally:
        done.set()
        speaker.join()
    shown = said.stdout.decode()
    assert re.search(r"^in [1-9][\d,.]*/s", shown, re.MULTILINE)
    assert re.search(r"^semicolon +[\d.]+ +[1-9]", shown, re.MULTILINE)
    assert shown.index("top/busy ") < shown.index(r"top/quiet\x1b ")
    assert f"127.0.0.1:{peer.address[1]}" in shown
    assert "\x1b" not in shown


def test_top_works_with_a_pure_relay() -> None:
    with Broker("--no-log", kinds=KINDS) as relay:
        said = run("smb", "top", "--every", 1, "--count", 1, "--url", url(relay))
        assert (said.returncode, b"no log" in said.stdout) == (0, True), said
