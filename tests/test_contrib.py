"""The systemd unit: systemd understands it, and it lets the broker do what it must."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smbroker.cli.broker import _parser

UNIT = Path(__file__).parent.parent / "contrib" / "smb.service"


class Unit(configparser.RawConfigParser):
    """Keys keep their case; one that comes again keeps its last value."""

    def __init__(self) -> None:
        super().__init__(strict=False)
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string(UNIT.read_text())


def test_the_unit_starts_the_broker_with_options_that_exist() -> None:
    service = Unit()["Service"]
    program, *words = service["ExecStart"].split()
    assert program.endswith("/smbbroker")
    options = _parser().parse_args(words)
    assert options.data == "/var/lib/" + service["StateDirectory"]
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_the_unit_shuts_the_broker_in() -> None:
    service = Unit()["Service"]
    for key in ("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome", "RestrictNamespaces", "PrivateUsers"):
        assert service[key] == "yes", key
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["User"] not in ("", "root")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    here = tmp_path / "smb.service"
    here.write_text(UNIT.read_text().replace("/opt/smb/bin/smbbroker", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "smb.service" in line]
    assert not said
