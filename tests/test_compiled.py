"""The compiled build behaves as the plain one: the tests of what is compiled, and of brokers, run with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/dialects", "tests/core", "tests/flow/test_pairs.py", "tests/flow/test_mqtt.py")

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed: mypyc makes C")


def test_what_is_compiled_passes_the_same_tests(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("SMB_LONG", None)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)

    made = run("hatch_build.py", str(tmp_path))
    assert made.returncode == 0, made.stdout + made.stderr
    assert run("-c", "from smbroker.core import delivery; print(delivery.__file__)").stdout.endswith(".so\n")
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    assert done.returncode == 0, done.stdout[-5_000:]
