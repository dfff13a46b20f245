"""`smb bench`: the project's own measurements, beside peers that are installed; part of the source, in bench/."""

import subprocess
import sys
from pathlib import Path

import smbroker
from smbroker.cli import terminal

CANNOT_RUN = 1


def main(words: list[str]) -> int:
    program = Path(smbroker.__file__).resolve().parents[2] / "bench" / "run.py"
    if not program.exists():
        terminal.fail("smb bench needs the source of SMB: in a clone of it, `make bench`", CANNOT_RUN)
    return subprocess.run([sys.executable, program, *words], check=False).returncode
