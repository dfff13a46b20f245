"""smbpublish: sends one message to a broker, in the dialect of one's choice.

It is silent when all is well; only the pipe dialect has an answer to show. Just the dialect that
is used is imported, so that a publish from a shell script costs little.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from smbroker.cli import terminal
from smbroker.cli.arguments import BAD_ARGUMENTS, Parser, Problems, parser, shown
from smbroker.cli.signals import INTERRUPTED, Stopped, raise_stopped_on_signals
from smbroker.cli.target import add_target_options, broker_address, dialect_named
from smbroker.client.address import Address
from smbroker.model.errors import SmbError, UsageError
from smbroker.model.message import Dialect, Kind

CALLS = (
    "smbpublish [--dialect D] [-h HOST] [-p PORT] [--tls] TOPIC [MESSAGE]",
    "smbpublish BROKER TOPIC MESSAGE",
    "smbpublish --dialect typed [--type T] TOPIC [MESSAGE]",
)
DESCRIPTION = """\
Publishes a message.

Without MESSAGE it is read from standard input, newlines and all, if that is a pipe or a file;
otherwise the message is empty. Three words without --dialect are a call of the pipe dialect, with
the broker's host as the first. Write -- before a TOPIC or MESSAGE that begins with a dash.

pipe, padded and mqtt (with QoS 1) wait up to 10 s for the broker's acknowledgement; the other dialects
have none.
"""
EXAMPLES = """\
  smbpublish kitchen/temperature 21.5            semicolon, to 127.0.0.1:8080
  date | smbpublish -h broker.lan clock          the message from standard input
  smbpublish 127.0.0.1 kitchen/temperature 21.5  pipe, prints the broker's answer
  smbpublish --dialect soh kitchen/light on
  smbpublish --dialect padded news 'good morning'
  smbpublish --dialect typed --type int outdoor/temperature -10

exit status: 0 sent (pipe, padded, mqtt: acknowledged), 1 it did not work, 2 bad arguments"""

KINDS = {kind.name.lower(): kind for kind in (Kind.INT, Kind.SHORT_REAL, Kind.FLOAT, Kind.STRING)}


@dataclass(frozen=True, slots=True)
class Wire:
    """What a dialect's client offers to a publisher."""

    encode: Callable[[bytes, bytes], bytes]  # topic, message; raises Refused if the dialect cannot say it
    publish: Callable[[Address, bytes, bytes], bytes | None]  # returns the broker's answer, if there is one


@dataclass(frozen=True, slots=True)
class Publication:
    wire: Wire
    address: Address
    topic: bytes
    message: bytes


def main() -> int:
    raise_stopped_on_signals()
    try:
        publication = _publication(*_parser().parse_words(sys.argv[1:]))
        answer = publication.wire.publish(publication.address, publication.topic, publication.message)
        if answer is not None:
            terminal.write(answer + b"\n")
    except UsageError as error:
        terminal.fail(error.text, BAD_ARGUMENTS)
    except SmbError as error:
        terminal.fail(error.text)
    except BrokenPipeError:  # it is published; nobody wants to read the answer
        return 0
    except Stopped:
        return INTERRUPTED
    return 0


def _parser() -> Parser:
    made = parser("smbpublish", DESCRIPTION, "\n       ".join(CALLS), EXAMPLES)
    add_target_options(made)
    made.add_argument("--type", metavar="T", help=f"with --dialect typed: {', '.join(KINDS)} (default: string)")
    return made


def _publication(options: Namespace, words: list[str]) -> Publication:
    """What the command line asks for; ends the program if it is wrong."""
    dialect = dialect_named(options.dialect or (Dialect.PIPE if len(words) == 3 else Dialect.SEMICOLON))
    broker = words.pop(0) if dialect is Dialect.PIPE and len(words) == 3 else None
    if not 1 <= len(words) <= 2:
        number = "no TOPIC given" if not words else f"too many words for --dialect {dialect}"
        raise UsageError("words", f"{number}; usage: {', or '.join(CALLS)}")
    problems = Problems()
    kind = _kind(options.type, dialect, problems)
    address = broker_address(options, broker, dialect, problems)
    if address.tls and dialect is Dialect.TYPED:
        problems.texts.append("--tls: typed publishes over UDP, which has none; leave it out")
    topic = os.fsencode(words[0])
    with problems.naming(f"TOPIC {shown(words[0])}"):
        _wire(dialect, Kind.STRING).encode(topic, b"")
    wire = _wire(dialect, kind)
    message = b""
    if not problems.texts:
        message = os.fsencode(words[1]) if len(words) == 2 else terminal.message_on_stdin()
        with problems.naming(f"MESSAGE {shown(terminal.text_of(message))}"):
            wire.encode(topic, message)
    problems.exit_if_any()
    if dialect is Dialect.SEMICOLON and b"#" in topic:
        terminal.warn(f"TOPIC {shown(words[0])}: brokers drop what is published to a topic with #")
    return Publication(wire, address, topic, message)


def _kind(name: str | None, dialect: Dialect, problems: Problems) -> Kind:
    if name is not None and dialect is not Dialect.TYPED:
        problems.texts.append(f"--type {shown(name)}: only --dialect typed has types; leave it out")
    elif name is not None and name not in KINDS:
        problems.texts.append(f"--type {shown(name)}: no such type; choose from {', '.join(KINDS)}")
    return KINDS.get(name or "", Kind.STRING)


def _wire(dialect: Dialect, kind: Kind) -> Wire:
    """Imports the one dialect that is used."""
    if dialect is Dialect.SOH:
        from smbroker.client import soh

        return Wire(soh.encode_publish, soh.publish)
    if dialect is Dialect.PIPE:
        from smbroker.client import pipe

        return Wire(pipe.encode_publish, pipe.publish)
    if dialect is Dialect.PADDED:
        from smbroker.client import padded

        return Wire(padded.encode_publish, padded.publish)
    if dialect is Dialect.TYPED:
        from smbroker.client import typed

        return Wire(partial(typed.encode_publish, kind=kind), partial(typed.publish, kind=kind))
    if dialect is Dialect.MQTT:
        from smbroker.client import mqtt

        return Wire(mqtt.encode_publish, mqtt.publish)
    from smbroker.client import semicolon

    return Wire(semicolon.encode_publish, semicolon.publish)
