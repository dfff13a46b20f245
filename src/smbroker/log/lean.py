"""pyarrow imports pandas, where it is installed, for its first array: a second or so that the broker does without."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name=fullname)


def without_pandas() -> None:
    """For a process of its own: from here on it has no pandas. Not for Spark's, which may need it."""
    sys.meta_path.insert(0, _NoPandas())
