"""`smb user add | passwd | token | rm | ls`: the users file. The broker reads it at its start and on SIGHUP.

Passwords are asked for on the terminal, or read from standard input: never from the command line, which others can see.
"""

import argparse
import getpass
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from smbroker.cli import arguments, terminal
from smbroker.model.errors import UsageError
from smbroker.server import config as configuration
from smbroker.server import users as users_file
from smbroker.server.access import users_path
from smbroker.server.users import LONGEST_PASSWORD, User, Users

USAGE = """smb user add NAME [--data DIR] [--config FILE] [--users FILE]
       smb user passwd NAME | token NAME [TOKEN] | rm NAME [TOKEN] | ls"""
EXAMPLES = """\
  smb user add ann                 asks for a password, twice
  smb user add lamp < lamp.secret  the password from a file
  smb user token ann phone         prints a new token for HTTP, once
  smb user rm ann phone            that token is no longer taken
  smb user rm ann
"""
SHORTEST = 8
Change: TypeAlias = tuple[Users, str, str]
"""The users then, what is said, and what is printed."""

ACTIONS = ("add", "passwd", "token", "rm", "ls")


def main(words: Sequence[str]) -> int:
    parser = arguments.parser("smb user", "Users with their passwords and tokens, as hashes.", USAGE, EXAMPLES)
    parser.add_argument("action", choices=ACTIONS, metavar="|".join(ACTIONS), help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the user")
    parser.add_argument("token", nargs="?", metavar="TOKEN", help="token, rm: the name of a token (default: default)")
    parser.add_argument("--data", metavar="DIR", help="data directory, where users.toml is (default smb-data)")
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings, for the users file")
    parser.add_argument("--users", metavar="FILE", help="the users file itself")
    options = parser.parse_intermixed_args(words)
    try:
        path = path_of(options)
        users = users_file.read(path, missing=True)
        if options.action == "ls":
            return _ls(users)
        if not options.name:
            raise UsageError("no_name", f"{options.action}: name the user")
        changed, said, secret = CHANGES[options.action](users, options.name, options.token)
        users_file.write(path, changed)
        if secret:
            terminal.write(f"{secret}\n".encode())
        terminal.say(f"{said}; a broker that is running reads {path} after SIGHUP")
        return 0
    except UsageError as error:
        terminal.fail(error.text, arguments.BAD_ARGUMENTS)


def path_of(options: argparse.Namespace) -> Path:
    if options.users:
        return Path(options.users)
    config = configuration.load(options.config) if options.config else configuration.Config()
    return users_path(replace(config, data=options.data or config.data))


def _ls(users: Users) -> int:
    for name, user in sorted(users.all.items()):
        shown = ["password"] * bool(user.password) + [f"token {token}" for token in sorted(user.tokens)]
        terminal.write(f"{name}  {', '.join(shown) or 'nothing to log in with'}\n".encode())
    if not users.all:
        terminal.say("there are no users; smb user add NAME makes one")
    return 0


def _with(users: Users, user: User) -> Users:
    return Users.of({**users.all, user.name: user})


def _known(users: Users, name: str) -> User:
    if name not in users.all:
        raise UsageError("no_user", f"there is no user {name}; smb user ls lists them")
    return users.all[name]


def _add(users: Users, name: str, _token: str | None) -> Change:
    users_file.check_name(name)
    if name in users.all:
        raise UsageError("user", f"there is a user {name} already; smb user passwd changes the password")
    return _with(users, users_file.with_password(User(name), _password())), f"{name} is added", ""


def _passwd(users: Users, name: str, _token: str | None) -> Change:
    return _with(users, users_file.with_password(_known(users, name), _password())), f"{name} has a new password", ""


def _new_token(users: Users, name: str, token: str | None) -> Change:
    label = token or "default"
    users_file.check_name(label, "token")
    user, secret = users_file.with_token(_known(users, name), label)
    return _with(users, user), f"the token {label} of {name} is printed here and nowhere else", secret


def _rm(users: Users, name: str, token: str | None) -> Change:
    user = _known(users, name)
    if token is None:
        return Users.of({key: one for key, one in users.all.items() if key != name}), f"{name} is removed", ""
    if token not in user.tokens:
        raise UsageError("no_token", f"{name} has no token {token}")
    left = {key: value for key, value in user.tokens.items() if key != token}
    return _with(users, replace(user, tokens=left)), f"the token {token} of {name} is removed", ""


CHANGES = {"add": _add, "passwd": _passwd, "token": _new_token, "rm": _rm}


def _password() -> str:
    if os.isatty(0):
        password = getpass.getpass("password: ")
        if getpass.getpass("again: ") != password:
            raise UsageError("password", "the two are not the same")
    else:
        password = sys.stdin.read(2 * LONGEST_PASSWORD).removesuffix("\n")
    if len(password) < SHORTEST or len(password.encode()) > LONGEST_PASSWORD:
        raise UsageError("password", f"a password has {SHORTEST} to {LONGEST_PASSWORD} characters")
    return password
