"""Stands for all tests of this folder where there is no browser; and what is said then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from page.conftest import MISSING

HERE = Path(__file__).parent
REMEDY = "there is no Chromium: apt-get install chromium"


def test_there_is_a_browser() -> None:
    if MISSING and os.environ.get("SMB_PAGE") == "must":
        pytest.fail(f"the page cannot be tested: {MISSING}", pytrace=False)
    if MISSING:
        pytest.skip(MISSING)


@pytest.mark.parametrize(
    ("must", "said", "status"), [("", "tests/page is left out", 0), ("must", "the page cannot", 1)]
)
def test_without_a_browser_one_line_says_what_would_bring_it(must: str, said: str, status: int) -> None:
    words = [sys.executable, "-m", "pytest", f"{Path(__file__)}::test_there_is_a_browser"]
    environment = {**os.environ, "PATH": "/nowhere", "SMB_PAGE": must}
    run = subprocess.run(words, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == status, run.stdout + run.stderr
    assert any(said in line and REMEDY in line for line in (run.stdout + run.stderr).splitlines()), run.stdout
