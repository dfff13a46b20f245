"""Beginning again: forgets how far a pipeline is. Needs no Spark; no runner may be at work meanwhile."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

from smbroker.model.errors import UsageError
from smbroker.spark.pipelines import status

CHECKPOINTS = "checkpoints"  # within the data directory


def start_of(data: Path, name: str) -> str | None:
    """Where a reset said to begin."""
    try:
        return (data / CHECKPOINTS / f"{name}.start").read_text().strip() or None
    except OSError:
        return None


def table_of(data: Path, name: str) -> str | None:
    """The table that the pipeline wrote when it ran last."""
    told = (status.read(data) or {"pipelines": []})["pipelines"]
    table: str | None = next((one.get("table") for one in told if one.get("name") == name), None)
    return table


def reset(data: Path, name: str, start: int | None = None, drop_table: bool = False) -> bool:
    """Whether there was anything to forget."""
    if not name or "/" in name or name.startswith("."):
        raise UsageError("no_pipeline", f"{name!r} is no name of a pipeline")
    checkpoint, begin = data / CHECKPOINTS / name, data / CHECKPOINTS / f"{name}.start"
    there = _removed(checkpoint)
    table = table_of(data, name) if drop_table else None
    if table:
        there = _removed(data / "tables" / table) or there
    begin.unlink(missing_ok=True)
    if start is not None:
        begin.parent.mkdir(parents=True, exist_ok=True)
        begin.write_text(f"{start}\n")
    return there


def _removed(path: Path) -> bool:
    """By another name first: half a checkpoint must never be gone on with."""
    if not path.exists():
        return False
    gone = path.with_name(f".{path.name}.{datetime.now(UTC):%Y%m%d%H%M%S%f}")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    return True
