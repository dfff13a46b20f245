"""What `smb demo` tells the process that runs the devices: one line of JSON on its standard input."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from smbroker.cli.devices.wires import DIALECTS
from smbroker.client.address import Address
from smbroker.model.message import Dialect

HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # who listens everywhere is met at home


class Listener(NamedTuple):
    kind: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Order:
    listening: Sequence[Listener]
    programs: str  # what stands before `smbpublish` when one types it: a folder with /, or nothing
    quiet: bool
    seed: int
    speed: float  # of the simulated time
    page: str | None = None  # its address, if there is a web listener

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def addresses(self) -> Mapping[Dialect, Address]:
        """Where each dialect is served that is; where twice, the first."""
        found: dict[Dialect, Address] = {}
        for kind, host, port in self.listening:
            for dialect in DIALECTS.get(kind, ()):
                found.setdefault(dialect, Address(HERE.get(host, host), port))
        return found


def order_of(line: bytes) -> Order:
    told = json.loads(line)
    told["listening"] = [Listener(*each) for each in told["listening"]]
    return Order(**told)
