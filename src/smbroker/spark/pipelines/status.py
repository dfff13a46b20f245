"""DIR/pipelines.json: what the runner tells of its pipelines. Written whole, read by anyone, without Spark."""

import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

FILE = "pipelines.json"

State = Literal["starting", "running", "waiting", "failed", "stopped"]


@dataclass(slots=True)
class PipelineStatus:
    name: str
    file: str
    state: State = "starting"  # waiting: it failed and is started again soon; failed: its file must change
    rows_per_second: float = 0.0
    batch: int | None = None  # the last one's number
    batch_ms: int | None = None  # and how long it took
    backlog: int | None = None  # messages that it has not read yet
    offset: int | None = None  # to read next
    error: dict[str, Any] | None = None  # file, line, reason; stays until a batch succeeds
    since: str = ""  # of this state
    table: str | None = None
    topic: str | None = None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def write(data: Path, pipelines: list[PipelineStatus]) -> None:
    content = {"pid": os.getpid(), "updated": now(), "pipelines": [asdict(each) for each in pipelines]}
    scratch = data / f"{FILE}.tmp"
    scratch.write_text(json.dumps(content, indent=1))
    scratch.replace(data / FILE)


def read(data: Path) -> dict[str, Any] | None:
    """None if there is none, or none that can be read."""
    try:
        content = json.loads((data / FILE).read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("pipelines"), list) else None


def age(timestamp: str) -> float:
    """Seconds since then."""
    return (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()
