"""What the demo tells a newcomer: what runs, and what to type in another terminal.

One line per dialect to watch and one to join in; host and port are named where they are not the
usual ones.
"""

import shlex
from collections.abc import Mapping

from smbroker.cli.target import HOST, PORTS
from smbroker.cli.terminal import coloured
from smbroker.client.address import Address
from smbroker.model.message import Dialect

BOLD, CYAN = 1, 36
WATCH = {
    Dialect.SEMICOLON: "'house/#'",
    Dialect.SOH: "'plant/#'",
    Dialect.PIPE: "house/living/temperature",
    Dialect.PADDED: "house/hall/door plant/status",
    Dialect.TYPED: "--id me house/power/grid plant/tank/level",
    Dialect.MQTT: "'house/+/temperature' 'house/garage/#'",
}
JOIN = {
    Dialect.SEMICOLON: "house/living/target 24",
    Dialect.SOH: "plant/pump1/command on",
    Dialect.PIPE: "hello/world 'good morning'",
    Dialect.PADDED: "house/bath/target 25",
    Dialect.TYPED: "--type int house/hall/target 20",
    Dialect.MQTT: "house/garage/charging off",
}


def guide(
    addresses: Mapping[Dialect, Address], devices: int, programs: str, speed: float, page: str | None = None
) -> str:
    served = [dialect for dialect in WATCH if dialect in addresses]
    lines = [
        "",
        coloured("SMB demo", BOLD) + f": a house and a small water works, {devices} devices in {_named(served)}.",
        _pace(speed),
        *(f"No listener for {dialect}: its devices stay silent." for dialect in WATCH if dialect not in addresses),
        "",
        coloured("Watch them", BOLD) + ", in another terminal:",
        *_lines("smbsubscribe", WATCH, addresses, programs),
        "",
        coloured("Join in", BOLD)
        + "; whoever speaks another dialect hears it too, and thermostat, pumps and charger obey:",
        *_lines("smbpublish", JOIN, addresses, programs),
        "",
        *([coloured("See it all", BOLD) + " in a browser: " + coloured(f"{page}/", CYAN), ""] if page else []),
        "Below is what the broker relays. " + coloured("Ctrl-C", BOLD) + " stops everything.",
        "",
    ]
    return "".join(f"{line}\n" for line in lines)


def _named(served: list[Dialect]) -> str:
    return f"{len(served)} dialects" if len(served) > 1 else served[0] if served else "no dialect"


def _pace(speed: float) -> str:
    if speed == 1:
        return "Their time runs as ours, from six in the morning."
    return f"Their time runs {speed:g} times as fast, from six in the morning: a day takes {_duration(86_400 / speed)}."


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"


def _lines(
    program: str, words: Mapping[Dialect, str], addresses: Mapping[Dialect, Address], programs: str
) -> list[str]:
    command = shlex.quote(programs + program)
    lines = []
    for dialect, rest in words.items():
        if dialect in addresses:
            options = _options(dialect, addresses[dialect])
            lines.append(f"  {dialect:<10} " + coloured(f"{command} {options}{rest}", CYAN))
    return lines


def _options(dialect: Dialect, address: Address) -> str:
    spoken = "" if dialect is Dialect.SEMICOLON else f"--dialect {dialect} "
    host = "" if address.host == HOST else f"-h {shlex.quote(address.host)} "
    port = "" if address.port == PORTS[dialect] else f"-p {address.port} "
    return spoken + host + port
