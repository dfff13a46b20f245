"""Beginning again: forgets how far a pipeline is. Needs no Spark; no runner may be at work meanwhile."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

from smbroker.model.errors import UsageError
from smbroker.spark.pipelines import status

CHECKPOINTS = "checkpoints"  # within the data directory
TABLES = "tables"  # likewise; tables.py would load deltalake


def start_of(data: Path, name: str) -> str | None:
    """Where a reset said to begin."""
    try:
        return (data / CHECKPOINTS / f"{name}.start").read_text().strip() or None
    except OSError:
        return None


def table_of(data: Path, name: str) -> tuple[str | None, str]:
    """The table that the pipeline wrote when it ran last, or None and why.

    If its file was gone then, or its header bad: the table of the same name, unless that is another's."""
    told = (status.read(data) or {"pipelines": []})["pipelines"]
    own = next((one for one in told if one.get("name") == name), None)
    if own and not own.get("table") and not own.get("error"):
        return None, f"{name} writes none"
    table = str((own and own.get("table")) or name)
    if other := next((one["name"] for one in told if one.get("table") == table and one is not own), None):
        return None, f"table {table} is written by {other}"
    if not (data / TABLES / table).is_dir():
        return None, f"there is no table {table}; `smb table ls` lists those there are"
    return table, ""


def checked_name(name: str) -> str:
    """Raises UsageError."""
    if not name or "/" in name or name.startswith("."):
        raise UsageError("no_pipeline", f"{name!r} is no name of a pipeline")
    return name


def reset(data: Path, name: str, start: int | None = None, table: str | None = None) -> bool:
    """Whether there was anything to forget; `table` is dropped too."""
    checkpoint, begin = data / CHECKPOINTS / name, data / CHECKPOINTS / f"{name}.start"
    there = _removed(checkpoint)
    if table:
        there = _removed(data / TABLES / table) or there
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
