"""The log in Spark: source, decoded view, sink, tables and pipelines. See docs/design/spark.md and pipelines.md.

The only package that imports pyspark; the broker runs without it (`pip install '.[spark]'`). It is imported
when one of the names below is first used: tables can be looked at without Spark.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smbroker.spark.sink import publish_batch
    from smbroker.spark.view import decoded

__all__ = ["decoded", "publish_batch"]

_HOME = {"decoded": "smbroker.spark.view", "publish_batch": "smbroker.spark.sink"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
