"""smbbroker's command line: options and configuration to settings, without a broker that runs."""

import argparse
from pathlib import Path

import pytest

from smbroker.cli import arguments, broker
from smbroker.model.errors import UsageError
from smbroker.server import listeners
from smbroker.server.config import DEFAULT_LISTEN, Config


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """What would have been run; listeners are judged as they would be."""
    made: list[Config] = []

    def run(config: Config) -> None:
        for text in config.listen:
            listeners.endpoint(text)
        made.append(config)

    monkeypatch.setattr(broker, "run", run)
    return made


def started(runs: list[Config], *words: str) -> Config:
    with pytest.raises(SystemExit) as ended:
        broker.main(words)
    assert ended.value.code == 0
    return runs.pop()


BAD = [
    (("--log-format", "xml"), "--log-format"),
    (("-p", "x"), "-p"),
    (("-p", "65536"), "-p"),
    (("-p", "-1"), "-p"),
    (("-p", ""), "-p"),
    (("-p", "9" * 5_000), "-p"),
    (("-p", "１２"), "-p"),
    (("-p", "+1"), "-p"),
    (("-p", "1_000"), "-p"),
    (("-s", "many"), "-s"),
    (("-s", "-1"), "-s"),
    (("-s", "99999999999"), "-s"),
    (("--max-subscribers", "x"), "-s"),
    (("-m", "1.5"), "-m"),
    (("-t", " "), "-t"),
    (("-t",), "-t"),
    (("-p", "0", "--listen", "udp://127.0.0.1:0"), "-p"),
    (("--port", "0", "--listen", "padded://127.0.0.1:0"), "-p"),
    (("--listen", "8080"), "--listen"),
    (("--listen", "udp://127.0.0.1"), "--listen"),
    (("--listen", "udp://127.0.0.1:65536"), "--listen"),
    (("--listen", "udp://127.0.0.1:x"), "--listen"),
    (("--listen", "udp://:0"), "--listen"),
    (("--listen", "udp://::1:0"), "--listen"),
    (("--listen", "UDP://127.0.0.1:0"), "--listen"),
    (("--listen", "morse://127.0.0.1:0"), "morse"),
    (("--listen", "udp://127.0.0.1:0", "--listen", "morse://127.0.0.1:0"), "morse"),
    (("--listen",), "--listen"),
    (("--nosuch",), "--nosuch"),
    (("word",), "word"),
    (("-h",), "-h"),
    (("--quie",), "--quie"),
    (("--config", "missing.toml"), "missing.toml"),
    (("--config", "."), "."),
]


@pytest.mark.parametrize(("words", "named"), BAD, ids=[" ".join(words)[:40] for words, _ in BAD])
def test_a_bad_argument_is_status_2_and_one_line_that_names_it(
    runs: list[Config], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        broker.main(words)
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert named in line
    assert len(line) < 400
    assert runs == []


def test_without_options_it_is_the_defaults(runs: list[Config]) -> None:
    assert started(runs) == Config()


def test_p_changes_the_udp_listener_alone(runs: list[Config]) -> None:
    for option in ("-p", "--port"):
        assert started(runs, option, "9000").listen == ("udp://127.0.0.1:9000", *DEFAULT_LISTEN[1:])


def test_listen_replaces_the_defaults(runs: list[Config]) -> None:
    words = ("--listen", "soh://127.0.0.1:1", "--listen", "tcp://[::1]:2")
    assert started(runs, *words).listen == ("soh://127.0.0.1:1", "tcp://[::1]:2")


def test_limits_and_switches(runs: list[Config]) -> None:
    made = started(
        runs, "-s", "1", "-m", "2", "-t", "3", "--quiet", "--no-log", "--data", "there", "--log-format", "json"
    )
    assert (made.semicolon.max_subscribers, made.semicolon.max_message, made.semicolon.max_topic) == (1, 2, 3)
    assert (made.quiet, made.no_log, made.data, made.log_format) == (True, True, "there", "json")
    long = started(runs, "--max-subscribers", "1", "--max-message-length", "2", "--max-topic-length", "3")
    assert long.semicolon == made.semicolon


def test_options_win_over_the_configuration_which_wins_over_the_defaults(runs: list[Config], tmp_path: Path) -> None:
    file = tmp_path / "smb.toml"
    file.write_text('quiet = true\ndata = "there"\n[semicolon]\nmax_topic = 7\nmax_message = 8\n')
    made = started(runs, "--config", str(file), "-t", "9", "--data", "here")
    assert (made.semicolon.max_topic, made.semicolon.max_message, made.semicolon.max_subscribers) == (9, 8, 100)
    assert (made.quiet, made.data) == (True, "here")


def test_a_port_that_cannot_be_had_is_another_status_than_a_bad_argument(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_config: Config) -> None:
        raise UsageError("bind", "port 8080 is taken")

    monkeypatch.setattr(broker, "run", run)
    with pytest.raises(SystemExit) as ended:
        broker.main([])
    assert ended.value.code == arguments.CANNOT_RUN
    assert capsys.readouterr().err == "port 8080 is taken\n"


def test_every_option_of_the_usage_is_an_option_and_the_other_way_round() -> None:
    parser = broker._parser()
    short = {word for action in parser._actions for word in action.option_strings if action.help != argparse.SUPPRESS}
    used = {word for word in short if f"{word} " in parser.format_usage().replace("|", " ").replace("]", " ")}
    for action in parser._actions:
        assert used & set(action.option_strings), action.option_strings
