"""The command lines: help, usage, version, and what is said of bad arguments."""

import pytest

from cli.programs import run
from smbroker import __version__
from smbroker.cli import arguments
from smbroker.cli.arguments import Problems, whole_number
from smbroker.model.errors import UsageError

PROGRAMS = ["smbpublish", "smbsubscribe"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_has_every_option_and_examples(program: str) -> None:
    short, long = run(program, "-?"), run(program, "--help")
    assert (short.returncode, short.stdout, short.stderr) == (0, long.stdout, b"")
    for option in (b"-?", b"--help", b"--usage", b"-V", b"--version", b"--dialect", b"-h", b"--host", b"-p", b"--port"):
        assert option in short.stdout
    for port in (b"8080", b"1379", b"12345"):
        assert port in short.stdout
    assert b"examples:" in short.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_usage_shows_each_way_to_call_it(program: str) -> None:
    result = run(program, "--usage")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.startswith(b"usage: " + program.encode())
    assert b"%b BROKER TOPIC" % program.encode() in result.stdout


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(program: str, option: str) -> None:
    result = run(program, option)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{program} {__version__}\n".encode(), b"")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("smbpublish", "no TOPIC given; usage: smbpublish"),
        ("smbsubscribe", "no TOPIC given; usage: smbsubscribe"),
        ("smbpublish a b c d", "too many words for --dialect semicolon; usage: smbpublish"),
        ("smbpublish --dialect soh a/b c d", "too many words for --dialect soh; usage: smbpublish"),
        ("smbpublish --dialect pipe a b c d", "too many words for --dialect pipe; usage: smbpublish"),
        ("smbsubscribe a b c", "--dialect semicolon takes one TOPIC; usage: smbsubscribe"),
        ("smbsubscribe --dialect semicolon a b", "--dialect semicolon takes one TOPIC; usage: smbsubscribe"),
        ("smbsubscribe --dialect pipe a b c", "--dialect pipe takes one TOPIC; usage: smbsubscribe"),
        ("smbsubscribe --dialect padded", "no TOPIC given; usage: smbsubscribe"),
        ("smbpublish --dialect morse t m", "--dialect 'morse': no such dialect; choose from semicolon, soh,"),
        ("smbpublish -p 0 t m", "-p '0': give a whole number from 1 to 65535"),
        ("smbpublish -p 65536 t m", "-p '65536': give a whole number from 1 to 65535"),
        ("smbsubscribe -p http t", "-p 'http': give a whole number from 1 to 65535"),
        ("smbsubscribe --port", "argument -p/--port: expected one argument; try: smbsubscribe --help"),
        ("smbpublish -h host broker t m", "-h 'host': the host is given twice; leave out -h or BROKER"),
        ("smbpublish --host= t m", "-h '': give the host's name or address"),
        ("smbpublish -x t m", "'-x': no such option; write -- before a word that begins with -"),
        ("smbpublish --hos 127.0.0.1 t", "'--hos': no such option"),
        ("smbpublish --type int t 1", "--type 'int': only --dialect typed has types; leave it out"),
        ("smbpublish --dialect typed --type long t 1", "--type 'long': no such type; choose from int, short_real,"),
        ("smbsubscribe --id C1 t", "--id 'C1': only --dialect typed has ids; leave it out"),
    ],
)
def test_a_bad_argument_is_named_in_one_line(words: str, told: str) -> None:
    result = run(*words.split())
    assert result.returncode == 2
    assert result.stdout == b""
    assert result.stderr.decode().startswith(told)
    assert result.stderr.count(b"\n") == 1


def test_the_broker_as_a_word_must_not_be_empty() -> None:
    result = run("smbsubscribe", "", "topic")
    assert (result.returncode, result.stderr) == (2, b"BROKER '': give the host's name or address\n")


@pytest.mark.parametrize(
    ("given", "host", "words"),
    [
        ("a b", None, ["a", "b"]),
        ("a -h h b", "h", ["a", "b"]),
        ("-hh a", "h", ["a"]),
        ("a -5 -.5 -1e9", None, ["a", "-5", "-.5", "-1e9"]),
        ("-", None, ["-"]),
        ("a -- -h --", None, ["a", "-h", "--"]),
    ],
)
def test_options_and_words_in_any_order(given: str, host: str | None, words: list[str]) -> None:
    parser = arguments.parser("program", "description")
    parser.add_argument("-h", "--host")
    options, found = parser.parse_words(given.split())
    assert (options.host, found) == (host, words)


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "١", "11", "9" * 5_000])
def test_what_is_not_a_whole_number_in_range(text: str) -> None:
    with pytest.raises(UsageError):
        whole_number(text, 0, 10)


def test_the_ends_of_the_range_belong_to_it() -> None:
    assert [whole_number(text, 0, 10) for text in ("0", "10", "07")] == [0, 10, 7]


def test_problems_are_gathered(capsys: pytest.CaptureFixture[str]) -> None:
    problems = Problems()
    with problems.naming("first"):
        whole_number("x", 0, 1)
    with problems.naming("fine"):
        whole_number("1", 0, 1)
    with problems.naming("second"):
        whole_number("y", 0, 2)
    with pytest.raises(SystemExit) as end:
        problems.exit_if_any()
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "first: give a whole number from 0 to 1",
        "second: give a whole number from 0 to 2",
    ]


def test_no_problems_no_end() -> None:
    Problems().exit_if_any()
