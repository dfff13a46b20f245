"""What the pipelines' runner tells of itself in DIR/pipelines.json. It is a program of its own."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = "pipelines.json"
MAX_BYTES = 4 << 20
STALE = 30.0  # seconds without a word after which the runner counts as gone


def status(data: Path) -> dict[str, Any]:
    """`running`: whether the runner has written it lately."""
    try:
        with (data / FILE).open("rb") as file:
            content = json.loads(file.read(MAX_BYTES))
        found = [one for one in content["pipelines"] if isinstance(one, dict)]
        updated = content.get("updated")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"running": False, "updated": None, "pipelines": []}
    return {"running": _age(updated) < STALE, "updated": updated, "pipelines": found}


def running(data: Path) -> bool:
    """Whether there is a runner."""
    return bool(status(data)["running"])


def summary(told: dict[str, Any]) -> str:
    """One word: off, ok, or failed if a pipeline is not well."""
    if not told["running"]:
        return "off"
    return "failed" if any(one.get("state") in ("failed", "waiting") for one in told["pipelines"]) else "ok"


def _age(timestamp: object) -> float:
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(str(timestamp))).total_seconds()
    except (ValueError, TypeError):
        return float("inf")
