"""`smb tail FILTER`: messages as they come, over HTTP. A cut connection is taken up again where it was."""

import argparse
import json
from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from smbroker.cli import arguments, terminal
from smbroker.cli.login import add_web_options, headers_of, url_of
from smbroker.cli.signals import Stopped
from smbroker.client.errors import ClientError
from smbroker.client.web import WebClient
from smbroker.model.errors import Refused, UsageError
from smbroker.model.filter import parse

USAGE = "smb tail [FILTER] [--from OFFSET|earliest] [--limit N] [--json] [--url URL] [--config FILE] [--user NAME]"
EXAMPLES = """\
  smb tail                              everything from now on
  smb tail 'house/+/temperature'
  smb tail 'plant/#' --from earliest    the whole history first
"""


def main(words: Sequence[str]) -> int:
    parser = arguments.parser("smb tail", "Messages as they come, every one of them.", USAGE, EXAMPLES)
    parser.add_argument("filter", nargs="?", metavar="FILTER", help="topics, in MQTT's notation (default: all)")
    parser.add_argument(
        "--from", dest="start", metavar="OFFSET", help="begin here: an offset, or earliest (default: now)"
    )
    parser.add_argument("--limit", metavar="N", help="end after so many messages")
    parser.add_argument("--json", action="store_true", help="a JSON object per line, as smb log cat prints")
    add_web_options(parser)
    options = parser.parse_intermixed_args(words)
    try:
        return _follow(options)
    except (BrokenPipeError, Stopped):  # whoever reads has seen enough
        return 0
    except (Refused, UsageError) as error:
        terminal.fail(error.text, arguments.BAD_ARGUMENTS)
    except ClientError as error:
        terminal.fail(error.text)


def _follow(options: argparse.Namespace) -> int:
    left = arguments.whole_number(options.limit, 1, 2**62) if options.limit else None
    parameters: dict[str, object] = {}
    if options.filter is not None:
        parse(options.filter)
        parameters["filter"] = options.filter
    if options.start is not None:
        parameters["from"] = options.start
    for event in WebClient(url_of(options), headers_of(options)).events("/v1/subscribe", parameters):
        if event.kind == "gap":
            terminal.warn(f"a damaged part of the log is left out: {event.data['text']}")
            continue
        line = json.dumps(event.data, ensure_ascii=False) if options.json else _line(event.data)
        terminal.write(f"{line}\n".encode("utf-8", "backslashreplace"))
        if left is not None:
            left -= 1
            if not left:
                break
    return 0


def _line(message: dict[str, Any]) -> str:
    """Time, topic, payload. Control characters are shown escaped: they are strangers' words on our terminal."""
    when = datetime.fromisoformat(message["ts"]).astimezone().strftime("%H:%M:%S.%f")[:-3]
    text = message.get("text")
    shown = b64decode(message["payload_base64"]).decode("utf-8", "backslashreplace") if text is None else text
    return f"{when} {terminal.printable(message['topic'])} {terminal.printable(shown)}"
