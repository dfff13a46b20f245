"""Debian's Chromium, or another that is there; and what its console complains of."""

import importlib.util
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

LIMIT = 30_000  # milliseconds that a browser on a busy machine may take
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "there is no playwright: make setup"
    return None if CHROMIUM else "there is no Chromium: apt-get install chromium"


def complaints(page: "Page", wrong: list[str]) -> None:
    """Errors and warnings are added to `wrong` as they come."""
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
