"""The console: escaping, colours, the rate of warnings, and that nobody has to read it."""

import fcntl
import json
import os
import pty
import select
import signal
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smbroker.server import console
from smbroker.server.console import MAX_WAITING, WARNINGS_PER_SECOND, Console, Stream, printable

YELLOW, RED, PLAIN = b"\x1b[33m", b"\x1b[31m", b"\x1b[0m"


class Pipe:
    """A stream into a pipe, and its other end."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.stream = Stream(self.writing)

    def read(self) -> bytes:
        """What is there now."""
        found = b""
        try:
            while piece := os.read(self.reading, 1 << 20):
                found += piece
        except BlockingIOError:
            pass
        return found

    def drain(self) -> bytes:
        """All that waits, read while it is written."""
        found = b""
        waits = True
        while waits:
            waits = self.stream.write()
            found += self.read()
        return found

    def close(self) -> None:
        for descriptor in (self.reading, self.writing):
            if descriptor >= 0:
                os.close(descriptor)


@pytest.fixture
def out() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
def err() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def talk(clock: Clock, out: Pipe, err: Pipe) -> Console:
    return Console(clock, out.stream, err.stream)


# --- escaping ---


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"ptopic;message", "ptopic;message"),
        ("größe °C 日本".encode(), "größe °C 日本"),
        (b"a\nb\r\t", r"a\nb\r\t"),
        (b"\0\x01\x1b[31m\x7f", r"\x00\x01\x1b[31m\x7f"),
        (b"\xff\xc3(", r"\xff\xc3("),
        ("\u2028\u202e\x85\u200b".encode(), r"\u2028\u202e\x85\u200b"),
        (b"\xed\xa0\x80", r"\xed\xa0\x80"),
        (b"back\\slash", "back\\slash"),
    ],
)
def test_bytes_of_others_are_one_line_without_control_characters(data: bytes, text: str) -> None:
    assert printable(data) == text


@given(st.binary(max_size=700))
def test_any_bytes_are_printable(data: bytes) -> None:
    text = printable(data)
    assert text.isprintable()
    assert text.isascii() or text.encode()


def test_what_is_long_is_cut_and_shows_it() -> None:
    assert printable(b"x" * 600) == "x" * 600
    assert printable(b"x" * 601) == "x" * 600 + "…"
    assert printable(b"abcdef", most=3) == "abc…"
    assert printable("aé".encode(), most=2) == r"a\xc3…"


# --- where it goes ---


def test_prescribed_lines_go_to_standard_output_and_talk_to_standard_error(talk: Console, out: Pipe, err: Pipe) -> None:
    talk.say("ready")
    talk.note("a line")
    talk.warn("code", "a warning")
    talk.error("an error")
    assert not talk.write()
    assert out.read() == b"ready\n"
    assert err.read() == b"a line\nwarning: a warning\nerror: an error\n", "plain: not a terminal"


def test_lines_are_collected_until_the_turn_writes_them(talk: Console, out: Pipe, err: Pipe) -> None:
    for number in range(3):
        talk.note(str(number))
        talk.say(str(number))
    assert (out.read(), err.read()) == (b"", b"")
    assert not talk.write()
    assert (out.read(), err.read()) == (b"0\n1\n2\n", b"0\n1\n2\n")
    assert not talk.write()
    assert (out.read(), err.read()) == (b"", b""), "once"


def test_a_file_gets_everything_at_once(tmp_path: Path) -> None:
    with (tmp_path / "err").open("wb") as file:
        stream = Stream(file.fileno())
        for number in range(20_000):
            stream.put(f"line {number}\n")
        assert not stream.write()
    assert (tmp_path / "err").read_text() == "".join(f"line {number}\n" for number in range(20_000))


# --- terminals ---


class Terminal:
    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        os.set_blocking(self.master, False)

    def read(self) -> bytes:
        found = b""
        while select.select([self.master], [], [], 0.05)[0]:
            found += os.read(self.master, 1 << 16)
        return found

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_on_a_terminal_warnings_are_yellow_errors_red_and_the_rest_plain(
    clock: Clock, out: Pipe, terminal: Terminal
) -> None:
    talk = Console(clock, out.stream, Stream(terminal.slave))
    talk.note("127.0.0.1:5:pa;m")
    talk.warn("code", "careful")
    talk.error("broken")
    talk.write()
    expected = [
        b"127.0.0.1:5:pa;m",
        YELLOW + b"warning: careful" + PLAIN,
        RED + b"error: broken" + PLAIN,
    ]
    assert terminal.read().splitlines() == expected


@pytest.fixture
def impatient() -> Iterator[None]:
    """What blocks fails instead."""

    def fail(*_: object) -> None:
        raise TimeoutError("blocked")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("impatient")
def test_a_terminal_that_nobody_reads_does_not_block_us_and_gets_all_later(terminal: Terminal) -> None:
    stream = Stream(terminal.slave)
    lines = [f"line {number}\n" for number in range(5_000)]
    for line in lines:
        stream.put(line)
    for _ in range(10):
        assert stream.write(), "most of it still waits"
    found = terminal.read()
    while stream.write():
        found += terminal.read()
    found += terminal.read()
    assert found == "".join(lines).encode()


def test_a_terminal_stays_as_it_was_for_the_others_who_use_it(terminal: Terminal) -> None:
    stream = Stream(terminal.slave)
    stream.put("line\n")
    stream.write()
    assert not fcntl.fcntl(terminal.slave, fcntl.F_GETFL) & os.O_NONBLOCK


# --- nobody reads ---


@pytest.mark.usefixtures("impatient")
def test_a_pipe_that_nobody_reads_does_not_block_us_and_what_waits_is_bounded(out: Pipe) -> None:
    line = "x" * 99 + "\n"
    count = 2 * MAX_WAITING // len(line)
    for _ in range(count):
        out.stream.put(line)
        out.stream.write()
    assert out.stream.write()
    assert len(out.stream._waiting) <= MAX_WAITING + len(line)
    *lines, last = out.drain().decode().splitlines(keepends=True)
    assert set(lines) == {line}, "whole lines"
    assert last == f"({count - len(lines)} lines left out: nobody was reading)\n"
    out.stream.put("again\n")
    assert out.drain() == b"again\n"


def test_lines_left_out_are_counted_as_lines_not_calls(out: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "MAX_WAITING", 10)
    for text in ("0123456789x\n", "one\ntwo\n", "three\n"):
        out.stream.put(text)
    assert out.drain() == b"0123456789x\n(3 lines left out: nobody was reading)\n"


def test_a_reader_that_is_gone_costs_nothing(out: Pipe) -> None:
    os.close(out.reading)
    out.reading = -1
    for _ in range(100):
        out.stream.put("x" * 10_000 + "\n")
        assert not out.stream.write()
    assert not out.stream._waiting


def test_a_stuck_standard_output_does_not_keep_standard_error_from_being_written(talk: Console, err: Pipe) -> None:
    for _ in range(100):
        talk.say("x" * 9_999)
    talk.note("said")
    assert talk.write()
    assert err.read() == b"said\n"


# --- the rate of warnings ---


def test_warnings_are_limited_per_second_and_the_rest_counted_by_kind(talk: Console, err: Pipe, clock: Clock) -> None:
    for number in range(WARNINGS_PER_SECOND):
        talk.warn("soh malformed", f"number {number}")
    for code, count in (("soh malformed", 7), ("pipe empty", 2)):
        for _ in range(count):
            talk.warn(code, "too many")
    talk.write()
    told = err.read().decode().splitlines()
    assert told == [f"warning: number {number}" for number in range(WARNINGS_PER_SECOND)]
    clock.now += 0.999
    talk.warn("soh malformed", "still the same second")
    talk.write()
    assert err.read() == b""
    clock.now += 0.002
    talk.warn("soh malformed", "the next second")
    talk.write()
    assert err.read().decode().splitlines() == [
        "warning: 8 more like this: soh malformed",
        "warning: 2 more like this: pipe empty",
        "warning: the next second",
    ]


def test_what_was_left_out_can_be_told_at_the_end_once(talk: Console, err: Pipe) -> None:
    for _ in range(WARNINGS_PER_SECOND + 3):
        talk.warn("code", "text")
    talk.write()
    err.read()
    for expected in (b"warning: 3 more like this: code\n", b""):
        talk.tell_left_out()
        talk.write()
        assert err.read() == expected


def test_a_flood_of_warnings_stays_small(talk: Console, err: Pipe, clock: Clock) -> None:
    for number in range(100_000):
        clock.now += 0.00005
        talk.warn(f"code {number % 3}", "flood")
    talk.write()
    assert len(err.drain().splitlines()) <= 6 * (WARNINGS_PER_SECOND + 3), "five seconds of it"


def test_errors_and_notes_are_not_limited(talk: Console, err: Pipe) -> None:
    for _ in range(100):
        talk.note("n")
        talk.error("e")
    talk.write()
    assert len(err.read().splitlines()) == 200


# --- JSON ---


def test_as_json_each_line_is_an_object(out: Pipe, err: Pipe, clock: Clock) -> None:
    told = Console(clock, out.stream, err.stream, as_json=True)
    told.note("a\nb")
    told.error('it "broke" \x1b[31m ü')
    for _ in range(WARNINGS_PER_SECOND + 3):
        told.warn("odd", "something")
    told.tell_left_out()
    lines = [json.loads(line) for line in err.drain().splitlines()]
    assert [(line["level"], line["code"], line["text"]) for line in lines] == [
        ("info", None, "a\nb"),
        ("error", None, 'it "broke" \x1b[31m ü'),
        *[("warning", "odd", "something")] * WARNINGS_PER_SECOND,
        ("warning", "odd", "3 more like this: odd"),
    ]
    assert all(line["ts"].endswith("Z") for line in lines)


def test_as_json_lines_that_nobody_read_are_told_as_one(out: Pipe, err: Pipe, clock: Clock) -> None:
    told = Console(clock, out.stream, err.stream, as_json=True)
    for _ in range(3 * MAX_WAITING // 1_000):
        told.note("x" * 1_000)
    last = json.loads(err.drain().splitlines()[-1])
    assert (last["level"], last["code"]) == ("warning", "left_out")
