"""pyarrow imports numpy, and pandas for its first array, where they are installed. The broker's processes do without:
the broker is ready in 0.36 s instead of 0.42, and takes 69 MB instead of 128.

    python -m smbroker.log.lean MODULE ARGUMENT…      runs a module so
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

LEFT_OUT = {"numpy", "pandas"}


class _LeftOut(MetaPathFinder):
    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> None:
        if fullname in LEFT_OUT:
            raise ModuleNotFoundError(f"this process does without {fullname}", name=fullname)


def lean() -> None:
    """For a process of its own, before pyarrow is imported. Not for Spark's, which needs them."""
    sys.meta_path.insert(0, _LeftOut())


if __name__ == "__main__":
    lean()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
