import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.register_assert_rewrite("dialects.wire", "dialects.streams")
# Other programs may keep the machine busy: how long an example takes says nothing. The same examples each time, so that
# a change is judged by what it changes; `make long` looks for new ones.
settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="SMB_LONG" not in os.environ
)
settings.load_profile("busy")


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import expect, sync_playwright

    from page.browsing import CHROMIUM, LIMIT

    expect.set_options(timeout=LIMIT)
    with sync_playwright() as playwright:
        rights = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=rights)
        yield made
        made.close()
