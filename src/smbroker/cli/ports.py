"""The ports that a command will listen on, found before anything is started beside it; and how people call programs."""

import errno
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from smbroker.log.lock import LOCK, in_use
from smbroker.model.errors import UsageError
from smbroker.server import listeners
from smbroker.server.config import Config

HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # who listens everywhere is met at home


def settled(config: Config, command: str) -> list[listeners.Endpoint]:
    """The listeners with the ports that they will have; UsageError names all that cannot be had."""
    bound, taken = [], []
    for text in config.listen:
        wanted = listeners.endpoint(text)
        try:
            bound.append(listeners.bind(wanted, config))
        except UsageError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
                raise
            taken.append(wanted)
    for one in bound:
        for sock in (one.stream, one.datagram):
            if sock:
                sock.close()
    if taken:
        raise UsageError("bind", _what_to_do(taken, config, command))
    return [one.endpoint for one in bound]


def _what_to_do(taken: Sequence[listeners.Endpoint], config: Config, command: str) -> str:
    holder = None if config.no_log else in_use(Path(config.data) / "log" / LOCK)
    others = [str(replace(one, port=0)) if one in taken else str(one) for one in map(listeners.endpoint, config.listen)]
    options = " ".join([*(["--data DIR"] if holder else []), *(f"--listen {one}" for one in others)])
    again = (
        f"make run ARGS='{options}'" if "MAKELEVEL" in os.environ else f"{typed_before(sys.argv[0])}{command} {options}"
    )
    if holder:  # with other ports alone the next start would fail as well
        return f"{holder}: a broker runs there already; stop it, or have a second one: {again}"
    ports = " and ".join(f"port {one.port} ({one.kind} on {one.host})" for one in taken)
    return f"{ports} already in use; stop what uses it, or take a free one: {again}"


def web_url(endpoints: Iterable[listeners.Endpoint]) -> str | None:
    """Where HTTP is spoken, without TLS if there is a choice; None: nowhere."""
    web = min((one for one in endpoints if one.kind == "web"), key=lambda one: one.tls, default=None)
    if web is None:
        return None
    host = HERE.get(web.host, web.host)
    return f"http{'s' * web.tls}://{f'[{host}]' if ':' in host else host}:{web.port}"


# --- how people call the programs ---


def typed_before(started_as: str) -> str:
    """What to type before a program's name: nothing if the shell finds it, else its folder, as short as can be."""
    folder = Path(started_as).parent
    if not (folder / "smbpublish").exists():
        folder = Path(sys.executable).parent
    found = shutil.which("smbpublish")
    if found and (folder / "smbpublish").exists() and Path(found).samefile(folder / "smbpublish"):
        return ""
    if folder.is_absolute() and folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    return f"{folder}/"
