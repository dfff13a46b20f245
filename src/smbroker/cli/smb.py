"""`smb`: one command for everything but the broker and the two small programs beside it.

A subcommand is one row of the table: the module that has its `main(words) -> exit status`, imported
only when it is called, and what it does in a few words.
"""

import difflib
import importlib
import signal
import sys
from types import ModuleType

from smbroker.cli import arguments, terminal
from smbroker.cli.arguments import Parser
from smbroker.cli.signals import INTERRUPTED, SIGNALS, Stopped, raise_stopped_on_signals
from smbroker.log.lean import lean

COMMANDS = {
    "up": ("smbroker.cli.up", "the broker and the pipelines together"),
    "tail": ("smbroker.cli.tail", "messages as they come, by filter, with history"),
    "top": ("smbroker.cli.top", "a live table: rates by dialect, the busiest topics, clients that are behind"),
    "log": ("smbroker.cli.log", "what the log holds: ls, cat, verify"),
    "pipeline": ("smbroker.cli.pipeline", "turn messages into tables and topics: run, check, status, reset"),
    "table": ("smbroker.cli.table", "what the tables hold: ls, show"),
    "bench": ("smbroker.cli.bench", "measure, beside the peers that are installed; --help says more"),
    "user": ("smbroker.cli.user", "users with passwords and tokens: add, passwd, token, rm, ls"),
    "rights": ("smbroker.cli.rights", "which rule decides: check USER ACTION TOPIC"),
    "doctor": ("smbroker.cli.doctor", "what a start would need: ports, disk, Java; each problem with its remedy"),
    "demo": ("smbroker.cli.demo", "the broker with simulated devices in all dialects: a house and a water works"),
}
LEAN = {"up", "demo"}  # those that are the broker


def main() -> int:
    raise_stopped_on_signals()
    words = sys.argv[1:]
    try:
        if words and words[0] in COMMANDS:
            if words[0] in LEAN:
                lean()
            status: int = _imported(COMMANDS[words[0]][0]).main(words[1:])
            return status
        _refuse(words)
    except Stopped:
        return INTERRUPTED
    except BrokenPipeError:
        if not terminal.unread():
            raise
        return 0  # the reader has seen enough
    return arguments.BAD_ARGUMENTS


def _imported(module: str) -> ModuleType:
    """Signals wait meanwhile: libraries that are raised into while they are imported may swallow it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # whoever started us may have blocked them already
    try:
        return importlib.import_module(module)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _parser() -> Parser:
    listed = "\n".join(f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items())
    return arguments.parser(
        "smb",
        f"SMB, the Simple Message Broker.\n\ncommands:\n{listed}\n\nsmb COMMAND --help says more about each.",
        "smb COMMAND [OPTION]...",
        "  smb demo\n  smb log cat --topics 'house/#'\n",
    )


def _refuse(words: list[str]) -> None:
    """Help, usage and version are options; anything else is not a command."""
    _, rest = _parser().parse_known_args(words[:1])
    if not rest:
        terminal.fail("smb: no command given; try: smb --help", arguments.BAD_ARGUMENTS)
    near = difflib.get_close_matches(rest[0], COMMANDS, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    terminal.fail(f"{arguments.shown(rest[0])}: no such command; {hint}try: smb --help", arguments.BAD_ARGUMENTS)


if __name__ == "__main__":
    sys.exit(main())
