"""What is wrong with a pipeline, and where: FILE:LINE: reason. Lines are those of the file, header included."""

from pathlib import Path
from typing import Any

from smbroker.model.errors import SmbError


def near(file: Path) -> Path:
    """As people would name it: from the current directory, where it lies below that."""
    try:
        return file.relative_to(Path.cwd())
    except (OSError, ValueError):  # the directory is gone, or the file lies elsewhere
        return file


class Problem(SmbError):
    """The author of the file must act."""

    def __init__(self, file: Path, line: int, reason: str, lasting: bool = False) -> None:
        self.file, self.line = file, max(line, 1)
        self.lasting = lasting  # another try cannot help
        self.reason = " ".join(reason.split())  # one line, whatever Spark or Python said
        super().__init__("bad_pipeline", f"{near(file)}:{self.line}: {self.reason}")

    def as_json(self) -> dict[str, Any]:
        return {"file": str(self.file), "line": self.line, "reason": self.reason}
