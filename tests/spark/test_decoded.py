"""The decoded view, as DataFrame → DataFrame: it agrees with Python on what is text, a number, JSON."""

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from log.logkit import ORIGINS
from smbroker.log.rows import value
from smbroker.model.message import Kind
from smbroker.spark import decoded
from spark.sparkkit import Store, read

NUMBERS = [b"12", b"-1.5e3", b" 7 ", b"1.", b".5", b"+3", b"1\n", b"\x0b1\x0c", b"1e-400", b"-0", b"1" * 400]
NO_NUMBERS = [
    *(b"1e400", b"0x10", b"NaN", b"Infinity", b"1d", b"1_000", b"1" * 401, b"\xc2\xa01", "٣".encode(), b"1 2"),
    *(b"e5", b".", b"+", b"--1", b"1e", b"12 V"),
]
TEXTS = [b"", "ä€😀".encode(), b"\x00", b"\xef\xbb\xbf1"]
NO_TEXTS = [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\x80", b"\xe2\x82"]
JSON = [
    *(b'{"a": 1}', b'[1, "x", null, {"b": [true]}]', b'"s"', b"true", b" null\n", b"0", b"-1.5e3", b"{}", b"[]"),
    *(b'{"": {}}', b'{"x": 1e3}', b"[" + b"1," * 100_000 + b"1]", b'"' + b"x" * (1 << 20) + b'"', b'["\\u00e4\\n"]'),
]
NO_JSON = [
    *(b"[1, 2", b'{"a": 1} x', b"nul", b"{'a': 1}", b'{"a": NaN}', b"01", b"[01]", b"[1,]", b"{a: 1}", b"[/*c*/1]"),
    *(b'{"a": 1}\n{"a": 2}', b'{"a": 1},{"a": 2}', b"[1] [2]", b'"a" "b"', b'{"a": 1}}', b"[1]]", b"[1] // ]"),
    *(b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'"a', b"TRUE", b'["\t"]', b"{]", b'"'),
]
ALL = [*NUMBERS, *NO_NUMBERS, *TEXTS, *NO_TEXTS, *JSON, *NO_JSON]


def frame_of(spark: SparkSession, payloads: list[bytes]) -> DataFrame:
    return spark.createDataFrame([("a", bytearray(payload)) for payload in payloads], "topic string, payload binary")


def view(frame: DataFrame) -> list[Any]:
    shown = decoded(frame).selectExpr("levels", "text", "value", "json is not null as is_json", "to_json(json) as json")
    return shown.collect()


def test_the_columns_that_it_adds(spark: SparkSession) -> None:
    added = decoded(frame_of(spark, [])).dtypes[2:]
    assert added == [("levels", "array<string>"), ("text", "string"), ("value", "double"), ("json", "variant")]


def test_it_agrees_with_the_plain_rules(spark: SparkSession) -> None:
    for payload, row in zip(ALL, view(frame_of(spark, ALL)), strict=True):
        text = None if payload in NO_TEXTS else payload.decode()
        assert (row.text, row.value) == (text, value(payload)), payload[:50]
        if payload in JSON:
            assert json.loads(row.json) == json.loads(payload), payload[:50]
        elif payload in NO_JSON or payload in NO_TEXTS:
            assert not row.is_json, payload[:50]


def test_levels(spark: SparkSession) -> None:
    topics = ["a", "a/b", "/a", "a/", "a//b", "/", "ä/€"]
    frame = spark.createDataFrame([(topic, bytearray()) for topic in topics], "topic string, payload binary")
    assert [row.levels for row in view(frame)] == [topic.split("/") for topic in topics]


def test_messages_of_the_log_and_fields_of_json(spark: SparkSession, store: Store) -> None:
    store.publish_payloads([b"21.5", b"-3"], ORIGINS[2], Kind.FLOAT)
    store.publish_payloads([b'{"t": 20.25, "unit": "C"}', b"\xff"], ORIGINS[1])
    frame = decoded(read(spark, store))
    assert [row.value for row in frame.collect()] == [21.5, -3.0, None, None]
    fields = frame.selectExpr("try_variant_get(json, '$.t', 'double') as t", "json:unit::string as unit")
    assert [tuple(row) for row in fields.collect()] == [(None, None), (None, None), (20.25, "C"), (None, None)]


def test_the_package_has_it_whatever_was_imported_before() -> None:
    import smbroker.spark.pipelines.runner
    import smbroker.spark.view

    assert callable(smbroker.spark.decoded)
    assert callable(smbroker.spark.publish_batch)
