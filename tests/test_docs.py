"""The documentation is held to the product: options, settings, reasons, links, layers, and the bytes on the wire."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flow.house import Broker, Tcp, Udp
from smbroker.cli.smb import COMMANDS
from smbroker.server.config import Config, as_table
from test_layers import MAY_IMPORT, ONLY_IN

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
DIALECTS = ("soh", "pipe", "semicolon", "padded", "typed")
PROGRAMS = ["smbbroker", "smbpublish", "smbsubscribe", "smb", *(f"smb {command}" for command in COMMANDS)]

_options = re.compile(r"(?<![\w-])--?[A-Za-z?][\w-]*").findall
_links = re.compile(r"\]\(([^)\s]+)\)").findall
_code = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE).findall
_rows = re.compile(r"^\| (.*) \|$", re.MULTILINE).findall
_quoted = re.compile(r"`([^`\n]+)`").findall


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- programs ---


@cache
def options_of(program: str) -> frozenset[str]:
    """What its help names."""
    name, *command = program.split()
    call = [Path(sys.executable).parent / name, *command, "--help"]
    said = subprocess.run(call, capture_output=True, text=True, check=True, timeout=30).stdout
    return frozenset(_options(said[said.index("options:") :].partition("\nexamples:")[0]))


def section(text: str, title: str) -> str:
    """From this heading to the next one of the same or a higher level."""
    found = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^##? |^\1 |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"no section {title}"
    return found[2]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_is_documented(program: str) -> None:
    documented = set(_options(section((REFERENCE / "programs.md").read_text(), program)))
    assert options_of(program) <= documented, f"{program}: {sorted(options_of(program) - documented)}"


def commands_in(page: Path) -> Iterator[list[str]]:
    """The calls of our programs in its shell examples, the folder taken off."""
    for language, code in _code(page.read_text()):
        for line in code.splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            if words and re.fullmatch(r"(\.venv/bin/)?smb\w*", words[0]):
                yield [words[0].rpartition("/")[2], *words[1:]]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_use_options_that_exist(page: Path) -> None:
    for words in commands_in(page):
        program = " ".join(words[:2]) if words[0] == "smb" else words[0]
        assert program in PROGRAMS, words
        used = {word for word in words[1:] if _options(word) and word.startswith("-")}
        assert used <= options_of(program), words


def test_the_readme_shows_how_to_use_the_programs() -> None:
    assert {words[0] for words in commands_in(ROOT / "README.md")} == {"smb", "smbbroker", "smbpublish", "smbsubscribe"}


# --- settings ---


def names(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{key}.")
        else:
            yield prefix + key


@pytest.mark.parametrize("setting", list(names(as_table(Config()))))
def test_every_setting_is_documented(setting: str) -> None:
    assert f"| `{setting}` |" in (REFERENCE / "settings.md").read_text()
    assert re.search(rf"^{setting.rpartition('.')[2]} = ", (ROOT / "smb.example.toml").read_text(), re.MULTILINE)


def test_the_documented_settings_exist_and_have_these_defaults() -> None:
    table = as_table(Config())
    rows = [row.split(" | ") for row in _rows((REFERENCE / "settings.md").read_text())]
    for name, default, *_ in (row for row in rows if row[0].startswith("`")):
        value: Any = table
        for key in name.strip("`").split("."):
            value = value[key]
        shown = default.replace("`", "").strip('"')
        assert shown == (", ".join(value) if isinstance(value, list) else f"{value}".lower().removesuffix(".0"))


def test_the_limits_name_settings_and_reasons_that_exist() -> None:
    rows = [row.split(" | ") for row in _rows((REFERENCE / "limits.md").read_text())][1:]
    assert len(rows) > 40
    settings = set(names(as_table(Config())))
    limited = {name for row in rows for name in _quoted(row[1])}
    assert limited <= settings, sorted(limited - settings)
    assert {name for row in rows for name in _quoted(row[4])} <= reasons()
    unlimited = {name for name in settings if re.search(r"\.max_|timeout|_bytes$", name)} - limited
    assert unlimited <= {"log.seal_bytes", "semicolon.max_message", "semicolon.max_topic"}, sorted(unlimited)


# --- reasons ---

ERRORS = {"ProtocolError", "Refused", "Unfit", "Reject", "error", "Malformed"}  # `error`: a class that was handed in
COUNTERS = {"dropped", "undeliverable", "ended"}


def text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def called(node: ast.Call) -> str:
    function = node.func
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


def counted(tree: ast.Module) -> Iterator[str]:
    """What `….dropped[…] += …` and the like count: a literal, or what a function is called with."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Subscript):
                continue
            counter, reason = node.target.value, node.target.slice
            if isinstance(reason, ast.Tuple):  # by dialect and reason
                reason = reason.elts[-1]
            if not isinstance(counter, ast.Attribute) or counter.attr not in COUNTERS:
                continue
            if literal := text(reason):
                yield literal
            elif isinstance(reason, ast.Name):
                yield from handed_in(tree, function, reason.id)


def handed_in(tree: ast.Module, function: ast.FunctionDef, parameter: str) -> Iterator[str]:
    arguments = [argument.arg for argument in function.args.args if argument.arg != "self"]
    if parameter in arguments:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) == function.name:
                literal = text(node.args[arguments.index(parameter)])
                assert literal, f"{function.name}: give {parameter} as a literal, so that it can be documented"
                yield literal


def raised(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ERRORS and len(node.args) in (2, 3):
            if literal := text(node.args[0]):
                yield literal
        elif isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "unfit":
            yield from filter(None, map(text, ast.walk(node.args[0])))  # a framer leaves it out


@cache
def reasons() -> frozenset[str]:
    trees = [ast.parse(file.read_text()) for file in sorted((ROOT / "src" / "smbroker").rglob("*.py"))]
    return frozenset(reason for tree in trees for reason in (*counted(tree), *raised(tree)))


def documented_reasons() -> set[str]:
    page = (REFERENCE / "counters.md").read_text()
    first_cells = [row.split(" | ")[0] for row in _rows(page)]
    return {name for cell in first_cells for name in _quoted(cell)}


def test_reasons_are_found_in_the_source() -> None:
    assert reasons() >= {"malformed", "topic_empty", "too_long", "unknown_dialect", "gone_peer", "log_unavailable"}


def test_every_reason_is_documented() -> None:
    page = set(_quoted((REFERENCE / "counters.md").read_text()))
    assert reasons() <= page, sorted(reasons() - page)


def test_every_documented_reason_exists() -> None:
    assert documented_reasons() <= reasons(), sorted(documented_reasons() - reasons())


# --- links ---


def anchors(page: Path) -> set[str]:
    """As the usual renderers make them of headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _links(page.read_text()):
        if link.startswith("https://"):
            continue
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        assert target.exists(), f"{name_of(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: {link}"


def test_every_page_is_reached_from_the_contents() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _links((DOCS / "index.md").read_text())}
    assert {page.resolve() for page in DOCS.rglob("*.md")} <= linked | {(DOCS / "index.md").resolve()}


# --- layers ---


def test_the_layer_tables_are_the_tested_ones() -> None:
    rows = [row.split(" | ") for row in _rows((DOCS / "design" / "layers.md").read_text())]
    packages = {row[0].strip("`/"): set(_quoted(row[-1])) for row in rows if row[0].endswith("/`")}
    libraries = {row[0].strip("`"): set(_quoted(row[-1])) for row in rows if len(row) == 2 and row[0].startswith("`")}
    assert packages == MAY_IMPORT
    assert libraries == ONLY_IN


# --- bytes ---


def conversations() -> Iterator[Any]:
    for dialect in DIALECTS:
        found = [code for language, code in _code((REFERENCE / f"{dialect}.md").read_text()) if language == "wire"]
        assert found, f"{dialect}.md has no example"
        for number, code in enumerate(found):
            yield pytest.param(dialect, code, id=f"{dialect}-{number}")


@pytest.mark.parametrize(("dialect", "conversation"), list(conversations()))
def test_the_bytes_in_the_examples_are_what_happens(dialect: str, conversation: str) -> None:
    with Broker() as broker:
        listener = dialect if dialect in ("padded", "typed") else "udp"
        clients: dict[str, Udp | Tcp] = {}
        port = b""
        for line in conversation.replace("\n    ", " ").splitlines():
            transport, name, arrow, expression = line.split(maxsplit=3)
            if name not in clients:
                clients[name] = broker.udp(listener) if transport == "UDP" else broker.tcp(listener)
            client = clients[name]
            data: bytes = eval(expression, {"__builtins__": {}, "port": port})
            if arrow == "→":
                client.send(data)
                port = client.address[1].to_bytes(2, "big")
                settle(broker, dialect, client)
            else:
                assert (client.receive(len(data)) if isinstance(client, Tcp) else client.receive()) == data, line


def settle(broker: Broker, dialect: str, client: Udp | Tcp) -> None:
    """Nothing answers a typed subscriber: a question on another connection that is answered comes after it."""
    if dialect == "typed" and isinstance(client, Tcp):
        other = broker.tcp("padded")
        other.send(b"Ping".ljust(64))
        assert other.receive(64) == b"Pong".ljust(64)
