"""What the command lines of all programs share.

Every program takes `-?|--help`, `--usage` and `-V|--version`; `-h` is a host, never help. A bad
argument ends the program with exit status 2 and one line on standard error that says which it is
and what to do; where several can be judged, each gets its line.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from smbroker import __version__
from smbroker.cli import terminal
from smbroker.model.errors import LogError, Refused, UsageError

BAD_ARGUMENTS = 2  # the exit status
CANNOT_RUN = 1  # … when a port or the log cannot be had
SHOWN = 40  # characters of a bad word that are repeated
MAX_PORT = 65_535


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        terminal.fail(f"{message}; try: {self.prog} --help", BAD_ARGUMENTS)

    def parse_words(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Options and the other words, in any order; after `--` everything is a word, and so are numbers."""
        end = arguments.index("--") if "--" in arguments else len(arguments)
        options, words = self.parse_known_args(arguments[:end])
        for word in words:
            if word.startswith("-") and word != "-" and not _is_number(word):
                self.error(f"{shown(word)}: no such option; write -- before a word that begins with -")
        return options, [*words, *arguments[end + 1 :]]


class _Usage(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **rest: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **rest)

    def __call__(self, parser: argparse.ArgumentParser, *_rest: object) -> NoReturn:
        parser.print_usage()
        parser.exit()


def parser(prog: str, description: str, usage: str | None = None, examples: str = "") -> Parser:
    """A parser with the options that every program has; `usage` has one line per way to call it."""
    made = Parser(
        prog=prog,
        description=description,
        usage=usage,
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    made.add_argument("-?", "--help", action="help", help="show this help and exit")
    made.add_argument("--usage", action=_Usage, default=argparse.SUPPRESS, help="show how to call it, in short")
    made.add_argument("-V", "--version", action="version", version=f"{prog} {__version__}", help="show the version")
    return made


class Problems:
    """Gathers what is wrong with the arguments, so that each bad one is named and not just the first."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @contextmanager
    def naming(self, argument: str) -> Iterator[None]:
        """What is refused inside is noted as a problem of this argument."""
        try:
            yield
        except (UsageError, Refused) as error:
            self.texts.append(f"{argument}: {error.text}")

    def exit_if_any(self) -> None:
        for text in self.texts:
            terminal.error(text)
        if self.texts:
            sys.exit(BAD_ARGUMENTS)


def cannot_run(error: UsageError | LogError) -> NoReturn:
    """For programs that are the broker."""
    terminal.fail(error.text, BAD_ARGUMENTS if isinstance(error, UsageError) and error.code != "bind" else CANNOT_RUN)


def whole_number(text: str, lowest: int, highest: int) -> int:
    digits = len(str(highest))
    if text.isascii() and text.isdecimal() and len(text) <= digits and lowest <= int(text) <= highest:
        return int(text)
    raise UsageError("bad_number", f"give a whole number from {lowest} to {highest}")


def check_data(data: Path) -> None:
    """UsageError if there is no such directory: often the command is run in another one than the broker."""
    if not data.is_dir():
        raise UsageError("no_data", f"{data}: there is no such directory; --data says where it is")


def shown(word: str) -> str:
    """A word of the command line as an error repeats it."""
    return repr(word if len(word) <= SHOWN else word[: SHOWN - 3] + "...")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
