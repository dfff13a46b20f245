"""The decoded view: the log's columns, and what topic and payload say.

    levels  array<string>   the topic's levels
    text    string          the payload, where it is UTF-8
    value   double          the number that the message is: a typed number, or plain numeric text
    json    variant         the text, where it is JSON

Spark expressions only: no row goes through Python. `value` means what `smbroker.log.rows.value` means.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from smbroker.log.rows import LONGEST_NUMBER, NUMBER

_NUMBER = rf"\A{NUMBER.pattern.decode()}\z"
# Most text is no JSON, and a parser that fails is slow: look at both ends first.
_SCALAR = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null"
_IS_SCALAR = rf"\A[ \t\r\n]*(?:{_SCALAR})[ \t\r\n]*\z"
_MAY_BE_JSON = r"(?s)\A[ \t\r\n]*(?:\{.*\}|\[.*\]|\".*\")[ \t\r\n]*\z"


def decoded(messages: DataFrame) -> DataFrame:
    text = F.try_validate_utf8(F.col("payload").cast("string"))
    is_json = F.col("text").rlike(_IS_SCALAR) | (F.col("text").rlike(_MAY_BE_JSON) & _is_one_value())
    json = F.when(is_json, F.try_parse_json("text"))
    return messages.withColumns({"levels": F.split("topic", "/", -1), "text": text}).withColumns(
        {"value": _value(), "json": json}
    )


def _is_one_value() -> Column:
    """Spark's parsers stop after the first value of `{"a": 1} {"a": 2}`: so in a list one more must follow it."""
    return F.json_array_length(F.concat(F.lit("["), F.col("text"), F.lit(",0]"))) == 2


def _value() -> Column:
    numeric = (F.octet_length("payload") <= LONGEST_NUMBER) & F.col("text").rlike(_NUMBER)
    number = F.when(numeric, F.col("text").try_cast("double"))
    return F.when(F.abs(number) < float("inf"), number)  # as JSON, which has no infinity
