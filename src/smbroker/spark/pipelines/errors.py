"""Where in a pipeline's file an error of Spark or Python arose, and its reason in one line."""

import re
import traceback

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import QueryContextType

from smbroker.model.errors import SmbError
from smbroker.spark.pipelines.files import Pipeline
from smbroker.spark.pipelines.problem import Problem

_AT = re.compile(r"\(line (\d+), pos(?:ition)? \d+\)|; line (\d+) pos \d+")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_PYTHON_END = re.compile(r"^(?:[\w.]+(?:Error|Exception|Interrupt|Problem|Refused)\b.*|\w+: .*)$")
MAX_REASON = 600  # characters
TOO_LARGE = "batch_too_large"  # the broker's code
# What Spark says when the checkpoint is of another query than the file's: no further try can help.
MISFITS = (
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",  # other aggregates
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",  # another grouping
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE",  # the next four: of transformWithState
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
    "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED",
    "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE",
    "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",  # another kind of state, or none any more
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",  # there was none before
)
_MISFIT = re.compile(rf"\[({'|'.join(MISFITS)})[\].]|There are \[\d+\] sources in the checkpoint offsets")


def located(pipeline: Pipeline, error: BaseException) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, SmbError) and error.code == TOO_LARGE:
        return Problem(pipeline.file, pipeline.lines.get("topic", 1), _too_large(pipeline.name), lasting=True)
    if isinstance(error, SmbError):
        return Problem(pipeline.file, 1, error.text)
    text = str(error)
    line = _line(pipeline, error, text)
    if found := _MISFIT.search(text):
        return Problem(pipeline.file, line, _misfit(pipeline.name, found[1]), lasting=True)
    return Problem(pipeline.file, line, _reason(error, text)[:MAX_REASON])


def _too_large(name: str) -> str:
    """The batch is what it is, also at the next try: Spark has written down which messages it spans."""
    again = f"stop smb, then `smb pipeline reset {name} --from` the offset that `smb pipeline status` shows"
    return f"a batch has more to publish than the broker takes at once; publish less of it, or give `rows` and {again}"


def _misfit(name: str, condition: str | None) -> str:
    code = f"[{condition}] " if condition else ""
    remedy = f"undo the change, or begin anew: stop smb, then `smb pipeline reset {name}`"
    return f"{code}what it remembers does not fit the changed query; {remedy}"


def _line(pipeline: Pipeline, error: BaseException, text: str) -> int:
    frames = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(pipeline.file)
    ]
    if frames and frames[-1]:
        return frames[-1]
    if not pipeline.is_sql:  # in a worker: its traceback is text
        found = re.findall(rf'File "{re.escape(str(pipeline.file))}", line (\d+)', text)
        return int(found[-1]) if found else 1
    if isinstance(error, PySparkException):
        for context in error.getQueryContext():
            if context.contextType() == QueryContextType.SQL and context.startIndex() >= 0:
                return pipeline.text.count("\n", 0, context.startIndex()) + 1
    found_at = _AT.search(text)
    return int(found_at[1] or found_at[2]) if found_at else 1


def _reason(error: BaseException, text: str) -> str:
    if "Traceback (most recent call last)" in text:  # Python in a worker, told by Spark
        ends = [line for line in text.splitlines() if _PYTHON_END.match(line.strip())]
        after = text.rpartition("Traceback (most recent call last)")[2].splitlines()
        ends = [line for line in after if line and not line.startswith((" ", "\t", ":"))] or ends
        return _AT.sub("", _STATE.sub("", ends[0] if ends else text)).strip()
    if isinstance(error, PySparkException):
        first = next((line for line in text.splitlines() if line.strip()), text)
        return _AT.sub("", _STATE.sub("", first)).strip().rstrip(";").strip()
    return f"{type(error).__name__}: {text}"
