"""Holds the import rule of docs/design/layers.md: who may import whom, and who may touch the outside world."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "smbroker"

MAY_IMPORT = {
    "model": set(),
    "dialects": {"model"},
    "core": {"model"},
    "log": {"model"},
    "client": {"model", "dialects"},
    "server": {"model", "dialects", "core", "log"},
    "spark": {"model", "log", "client"},
    "web": {"model"},
    "cli": {"model", "log", "client", "server", "spark", "web"},
}
ONLY_IN = {
    "asyncio": {"server", "client", "web", "cli"},
    "uvloop": {"server"},
    "socket": {"server", "client", "web", "cli"},
    "pyarrow": {"log", "spark"},
    "pyspark": {"spark"},
    "deltalake": {"spark"},
}
NO_CLOCK = {"dialects", "core", "model"}
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(file: Path) -> set[str]:
    """Full names of the modules that a file imports, also within functions."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def layer_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_package_imports_only_what_its_row_names(file: Path) -> None:
    layer = layer_of(file)
    if not layer:
        assert not {name for name in imported(file) if name.startswith("smbroker.")}
        return
    allowed = MAY_IMPORT[layer] | {layer}
    for name in imported(file):
        if name.startswith("smbroker."):
            reached = name.split(".")[1]
            assert reached in allowed or not (PACKAGE / reached).is_dir(), f"{layer} must not import {name}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_the_outside_world_is_met_only_where_it_may_be(file: Path) -> None:
    layer = layer_of(file)
    roots = {name.split(".")[0] for name in imported(file)}
    for library, layers in ONLY_IN.items():
        assert library not in roots or layer in layers, f"{layer} must not use {library}"
    if layer in NO_CLOCK:
        assert not roots & {"time", "datetime", "os", "io", "threading"}, f"{layer} does no I/O and asks no clock"


@pytest.mark.parametrize("file", sorted((PACKAGE / "dialects").rglob("*.py")), ids=lambda file: file.name)
def test_no_dialect_imports_another(file: Path) -> None:
    own = file.relative_to(PACKAGE / "dialects").parts[0].removesuffix(".py")
    for name in imported(file):
        if name.startswith("smbroker.dialects."):
            assert name.split(".")[2] == own


def test_the_module_that_spark_looks_for_imports_spark_alone() -> None:
    for file in (SOURCE / "pyspark_smb").rglob("*.py"):
        assert all(name.startswith("smbroker.spark.") for name in imported(file))
