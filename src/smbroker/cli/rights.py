"""`smb rights check USER ACTION TOPIC`: whether it is allowed, and by which rule. Reads the files, not the broker."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smbroker.cli import arguments, terminal
from smbroker.cli.user import path_of
from smbroker.model.errors import Refused, UsageError
from smbroker.model.filter import Filter, parse
from smbroker.model.message import Dialect
from smbroker.model.rights import Action, Identity, Rules
from smbroker.model.topic import checked_topic
from smbroker.server import config as configuration
from smbroker.server import users as users_file
from smbroker.server.access import read_rules

USAGE = """smb rights check USER publish|subscribe|replay TOPIC [--rules FILE] [--config FILE]
              [--address IP] [--dialect D] [--client ID]"""
EXAMPLES = """\
  smb rights check ann publish home/door --rules rules.toml
  smb rights check anonymous subscribe home/door --address 192.168.1.7 --dialect semicolon
"""
ANONYMOUS = ("anonymous", "-")
DENIED = 1


def main(words: Sequence[str]) -> int:
    parser = arguments.parser("smb rights", "Which rule decides. Exit 0: allowed, 1: denied.", USAGE, EXAMPLES)
    parser.add_argument("check", choices=["check"], metavar="check", help="what to do")
    parser.add_argument("user", metavar="USER", help="a user, or anonymous")
    parser.add_argument(
        "action", choices=[str(one) for one in Action], metavar="ACTION", help="publish, subscribe or replay"
    )
    parser.add_argument("topic", metavar="TOPIC", help="a topic; or a filter, to subscribe to or to replay")
    parser.add_argument("--rules", metavar="FILE", help="the rules file (default: rights.rules of the settings)")
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings, for the files")
    parser.add_argument("--data", metavar="DIR", help="data directory, where users.toml is (default smb-data)")
    parser.add_argument("--users", metavar="FILE", help="the users file itself")
    parser.add_argument("--address", metavar="IP", default="127.0.0.1", help="where from (default %(default)s)")
    parser.add_argument("--dialect", metavar="D", default="mqtt", help="which dialect, or http (default %(default)s)")
    parser.add_argument("--client", metavar="ID", help="the client's id")
    options = parser.parse_intermixed_args(words)
    try:
        return _check(options)
    except (UsageError, Refused) as error:
        terminal.fail(error.text, arguments.BAD_ARGUMENTS)


def _check(options: argparse.Namespace) -> int:
    config = configuration.load(options.config) if options.config else configuration.Config()
    config = replace(config, rights=replace(config.rights, rules=options.rules or config.rights.rules))
    if not config.rights.rules:
        raise UsageError("rules", "there is no rules file: loopback may do all, others nothing; name one with --rules")
    if options.dialect not in list(Dialect):
        raise UsageError("dialect", f"--dialect {options.dialect}: there are {', '.join(Dialect)}")
    user = None if options.user in ANONYMOUS else options.user
    who = Identity(Dialect(options.dialect), options.address, user, options.client)
    topic = checked_topic(options.topic.encode("utf-8", "surrogatepass"))
    if user is not None and user not in users_file.read(path_of(options), missing=True).all:
        terminal.warn(f"{user} is not in the users file: who that is only a certificate can tell")
    allowed, why = explained(read_rules(config.rights.rules), who, Action(options.action), topic)
    verdict = "allowed" if allowed else "denied"
    terminal.write(f"{verdict}: {options.user} {options.action} {terminal.printable(options.topic)}: {why}\n".encode())
    return 0 if allowed else DENIED


def explained(rules: Rules, who: Identity, action: Action, topic: bytes) -> tuple[bool, str]:
    if action is Action.PUBLISH and topic.startswith(b"$"):
        return False, "topics that begin with $ are the broker's own, whatever the rules say"
    if {b"+", b"#"} & set(topic.split(b"/")):
        return _filtered(rules, who, action, parse(topic.decode()))
    decision = rules.decide(who, action, topic)
    if decision.rule is None:
        return False, f"no rule of {rules.name} allows it"
    kind = "allow" if decision.rule.allow else "deny"
    return decision.allowed, f"{rules.name}:{decision.rule.line} [[{kind}]]"


def _filtered(rules: Rules, who: Identity, action: Action, pattern: Filter) -> tuple[bool, str]:
    if action is Action.PUBLISH:
        raise UsageError("topic", "nothing is published to a filter: name a topic")
    if rules.permit(who, action).meets(pattern):
        return True, "the filter is taken, and brings those of its topics that are allowed: check one of them"
    return False, f"{rules.name} allows none of its topics"
