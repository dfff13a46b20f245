"""A page of a real broker in the browser. Without Chromium these tests are left out, with one line that says so.

With SMB_PAGE=must, as .ci/run has it, they are not left out but fail.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from flow.house import Broker
from page.browsing import LIMIT, complaints, missing
from web.calls import KINDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MISSING = missing()
collect_ignore_glob = ["test_page*.py"] if MISSING else []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if MISSING:
        terminalreporter.write_line(f"tests/page is left out: {MISSING}")


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
    complaints(made, wrong)
    yield made
    context.close()
    assert not wrong
