"""Tables for the page: `python -m smbroker.spark.preview DIR`, a process of the broker's, started when somebody looks.

A question is a line of JSON on standard input, the answer a line on standard output; it ends with its input.
    {"tables": true}                                    {"tables": [{"name", "rows", "bytes", "version", "columns"}]}
    {"name": NAME, "limit": N, "topic": TOPIC or null}  {"rows": [{column: value}]}
What goes wrong is told as {"code", "text"}.
"""

import json
import sys
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from smbroker.model.errors import UsageError
from smbroker.spark.tables import last_rows, tables

LONGEST = 1_000  # characters that are shown of a value


def answer(data: Path, question: dict[str, Any]) -> dict[str, Any]:
    try:
        if question.get("tables"):
            return {"tables": [asdict(one) for one in tables(data)]}
        return {"rows": _shown(last_rows(data, question["name"], question["limit"], question["topic"]))}
    except UsageError as error:
        return {"code": error.code, "text": error.text}
    except Exception as error:  # a table that is written meanwhile, or damaged: the next question may fare better
        return {"code": "bad_table", "text": f"the table cannot be read: {error}"}


def _shown(thing: Any) -> Any:
    """As JSON can tell it, and not too long."""
    if isinstance(thing, dict):
        return {key: _shown(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return [_shown(value) for value in thing]
    if isinstance(thing, str):
        return thing[:LONGEST]
    if isinstance(thing, float):
        return thing if isfinite(thing) else None
    return thing if thing is None or isinstance(thing, bool | int) else str(thing)[:LONGEST]


def main() -> None:
    data = Path(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(answer(data, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
