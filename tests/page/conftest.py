"""Debian's Chromium and a real broker. Without Chromium these tests are left out, with one line that says so."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from flow.house import Broker
from web.calls import KINDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


LIMIT = 30_000  # milliseconds that a browser on a busy machine may take
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "there is no playwright: make setup"
    return None if CHROMIUM else "there is no Chromium: apt-get install chromium"


MISSING = missing()
collect_ignore_glob = ["test_page*.py"] if MISSING else []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if MISSING:
        terminalreporter.write_line(f"tests/page is left out: {MISSING}")


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=LIMIT)
    with sync_playwright() as playwright:
        rights = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=rights)
        yield made
        made.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(kinds=KINDS) as made:
        yield made


@pytest.fixture
def wrong() -> list[str]:
    """What the browser's console calls an error or a warning."""
    return []


@pytest.fixture
def page(browser: "Browser", broker: Broker, wrong: list[str]) -> Iterator["Page"]:
    """Anything that the browser's console complains of fails the test."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{broker.ports['web']}")
    made = context.new_page()
    made.set_default_timeout(LIMIT)
    made.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: wrong.append(str(error)))
    yield made
    context.close()
    assert not wrong
