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


def located(pipeline: Pipeline, error: BaseException) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, SmbError):
        return Problem(pipeline.file, 1, error.text)
    text = str(error)
    line = _line(pipeline, error, text)
    return Problem(pipeline.file, line, _reason(error, text)[:MAX_REASON])


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
