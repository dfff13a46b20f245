"""smbsubscribe: prints what a broker sends, in the dialect of one's choice, until it is stopped.

This file reads the command line; `consoles` has what then happens, a module per dialect.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from smbroker.cli import terminal
from smbroker.cli.arguments import BAD_ARGUMENTS, Parser, Problems, parser, shown
from smbroker.cli.signals import Stopped, raise_stopped_on_signals
from smbroker.cli.target import add_target_options, broker_address, dialect_named
from smbroker.client.address import Address
from smbroker.model.errors import SmbError, UsageError
from smbroker.model.message import Dialect

CALLS = (
    "smbsubscribe [--dialect D] [-h HOST] [-p PORT] [--tls] TOPIC...",
    "smbsubscribe BROKER TOPIC",
    "smbsubscribe --dialect typed --id ID [TOPIC...]",
)
DESCRIPTION = """\
Subscribes and prints the messages on standard output; everything else that it has to say goes to
standard error. Ctrl-C ends it.

  semicolon  topic;message             wildcard # at any level; unsubscribes on leaving
  pipe       TOPIC: t - MESSAGE: m     TOPIC may be # for everything
  soh        [topic/subtopic] message  # as a whole topic or subtopic; several topics
  padded     title: message            several topics; type exit to leave
  mqtt       topic message             wildcards + and #; several topics
  typed      IP:PORT - TOPIC - TYPE - value
             reads from standard input: subscribe TOPIC SF (SF 1: keep messages while away),
             unsubscribe TOPIC, exit; topics on the command line are subscribed with SF 0

Two words without --dialect are a call of the pipe dialect, with the broker's host as the first.
Write -- before a TOPIC that begins with a dash.
"""
EXAMPLES = """\
  smbsubscribe 'kitchen/#'                    semicolon, from 127.0.0.1:8080
  smbsubscribe 127.0.0.1 kitchen/temperature  pipe
  smbsubscribe --dialect soh kitchen/light 'hall/#'
  smbsubscribe --dialect padded -h broker.lan news weather
  smbsubscribe --dialect typed --id C1        then type: subscribe outdoor/temperature 1

exit status: 0 ended by you (typed: or by the broker), 1 it did not work, 2 bad arguments"""

SEVERAL_TOPICS = (Dialect.SOH, Dialect.PADDED, Dialect.TYPED, Dialect.MQTT)


NO_WILDCARDS = (Dialect.PADDED, Dialect.TYPED)
WILDCARDS = {  # where not all of MQTT's are
    Dialect.SEMICOLON: "in semicolon only # as a level is a wildcard",
    Dialect.PIPE: "in pipe only # alone is a wildcard",
    Dialect.SOH: "in soh only # as the whole topic or subtopic is a wildcard",
    Dialect.PADDED: "padded has no wildcards",
    Dialect.TYPED: "typed has no wildcards",
}


@dataclass(frozen=True, slots=True)
class Wire:
    """What a dialect offers to a subscriber."""

    encode: Callable[[bytes], bytes]  # topic; raises Refused if the dialect cannot say it
    run: Callable[[Address, list[bytes]], int]


def main() -> int:
    raise_stopped_on_signals()
    try:
        wire, address, topics = _subscription(*_parser().parse_words(sys.argv[1:]))
        return wire.run(address, topics)
    except UsageError as error:
        terminal.fail(error.text, BAD_ARGUMENTS)
    except SmbError as error:
        terminal.fail(error.text)
    except (Stopped, BrokenPipeError):  # the latter: whoever read our output has gone, as `head` does
        return 0


def _parser() -> Parser:
    made = parser("smbsubscribe", DESCRIPTION, "\n       ".join(CALLS), EXAMPLES)
    add_target_options(made)
    made.add_argument("--id", help="with --dialect typed: who we are, up to 10 characters")
    return made


def _subscription(options: Namespace, words: list[str]) -> tuple[Wire, Address, list[bytes]]:
    """What the command line asks for; ends the program if it is wrong."""
    dialect = dialect_named(options.dialect or (Dialect.PIPE if len(words) == 2 else Dialect.SEMICOLON))
    broker = words.pop(0) if dialect is Dialect.PIPE and len(words) == 2 else None
    _check_number(dialect, words)
    problems = Problems()
    _check_id(options.id, dialect, problems)
    address = broker_address(options, broker, dialect, problems)
    wire = _wire(dialect, options.id or "")
    for word in words:
        with problems.naming(f"TOPIC {shown(word)}"):
            wire.encode(os.fsencode(word))
    problems.exit_if_any()
    for word in words:
        if _looks_like_a_wildcard(word, dialect):
            terminal.warn(f"{word}: {WILDCARDS[dialect]}; this name is taken as it stands")
    return wire, address, [os.fsencode(word) for word in dict.fromkeys(words)]


def _looks_like_a_wildcard(topic: str, dialect: Dialect) -> bool:
    """Whether it has a level that is a wildcard elsewhere and none here: nothing else would tell of the mistake."""
    if dialect is Dialect.MQTT:
        return False
    parts = topic.split("/", 1) if dialect is Dialect.SOH else [topic]
    plain = [level for part in parts if part != "#" or dialect in NO_WILDCARDS for level in part.split("/")]
    return "+" in plain or ("#" in plain and dialect is not Dialect.SEMICOLON)


def _check_number(dialect: Dialect, words: list[str]) -> None:
    usage = f"usage: {', or '.join(CALLS)}"
    if not words and dialect is not Dialect.TYPED:
        raise UsageError("words", f"no TOPIC given; {usage}")
    if len(words) > 1 and dialect not in SEVERAL_TOPICS:
        raise UsageError("words", f"--dialect {dialect} takes one TOPIC; {usage}")


def _check_id(name: str | None, dialect: Dialect, problems: Problems) -> None:
    if dialect is not Dialect.TYPED:
        if name is not None:
            problems.texts.append(f"--id {shown(name)}: only --dialect typed has ids; leave it out")
        return
    if name is None:
        problems.texts.append("--id: --dialect typed needs one; say who we are, for example --id C1")
        return
    from smbroker.client.typed import encode_identity

    with problems.naming(f"--id {shown(name)}"):
        encode_identity(name)


def _wire(dialect: Dialect, client: str) -> Wire:
    """Imports the one dialect that is used."""
    if dialect is Dialect.SOH:
        from smbroker.cli.consoles import soh

        return Wire(soh.encode_subscribe, soh.run)
    if dialect is Dialect.PIPE:
        from smbroker.cli.consoles import pipe

        return Wire(pipe.encode_subscribe, pipe.run)
    if dialect is Dialect.PADDED:
        from smbroker.cli.consoles import padded

        return Wire(padded.encode_subscribe, padded.run)
    if dialect is Dialect.TYPED:
        from smbroker.cli.consoles import typed

        return Wire(typed.encode_subscribe, partial(typed.run, client=client))
    if dialect is Dialect.MQTT:
        from smbroker.cli.consoles import mqtt

        return Wire(mqtt.encode_subscribe, mqtt.run)
    from smbroker.cli.consoles import semicolon

    return Wire(semicolon.encode_subscribe, semicolon.run)
