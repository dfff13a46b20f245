"""The compiled build: the modules that every message goes through, made into C by mypyc. It is optional.

    SMB_COMPILED=1 pip install .           a wheel with them, for this Python and machine
    python hatch_build.py DIR              a copy of the packages with them in DIR, for PYTHONPATH: `make compiled`

The plain source stays beside them and is what counts: tests run both ways.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # only a build has it
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
MODULES = (
    "core/delivery",
    "dialects/mqtt/frames",
    "dialects/mqtt/stream",
    "dialects/padded/decoder",
    "dialects/padded/fields",
    "dialects/padded/frames",
    "dialects/padded/message",
    "dialects/pipe",
    "dialects/semicolon",
    "dialects/soh",
    "dialects/typed/content",
    "dialects/typed/datagram",
    "dialects/typed/frames",
)
NEEDED = ("mypy>=2", "setuptools>=65")


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    def dependencies(self) -> list[str]:
        return list(NEEDED) if wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not wanted() or version == "editable":
            return
        self.compiled = Path(tempfile.mkdtemp(prefix="smb-compiled-"))
        for path in compile_into(self.compiled):
            build_data["force_include"][str(path)] = str(path.relative_to(self.compiled))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact: str) -> None:
        if hasattr(self, "compiled"):
            shutil.rmtree(self.compiled)


def wanted() -> bool:
    return os.environ.get("SMB_COMPILED", "0") not in ("", "0")


def compile_into(directory: Path) -> list[Path]:
    """A copy of the packages, and what was compiled beside it; the latter's files."""
    shutil.copytree(ROOT / "src", directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    sources = [f"smbroker/{module}.py" for module in MODULES]
    command = [sys.executable, "-m", "mypyc", *sources]
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    shutil.rmtree(directory / "build", ignore_errors=True)
    shutil.rmtree(directory / ".mypy_cache", ignore_errors=True)
    found = sorted(directory.rglob("*.so"))
    if done.returncode or len(found) <= len(MODULES):
        needs = " and ".join(("gcc", "Python's headers", *NEEDED))
        sys.exit(f"{done.stdout[-4_000:]}\nmypyc has failed. It needs {needs}")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    compile_into(target)
    print(f"compiled: PYTHONPATH={target} .venv/bin/smbbroker")
