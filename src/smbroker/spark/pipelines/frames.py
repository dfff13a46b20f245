"""What a pipeline is in Spark: its rows of `messages`, what the file makes of them, and that as messages again."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from smbroker.model.errors import Stopped
from smbroker.model.topic import MAX_TOPIC
from smbroker.spark.pipelines.errors import located
from smbroker.spark.pipelines.files import Pipeline
from smbroker.spark.pipelines.problem import Problem
from smbroker.spark.pipelines.template import Template
from smbroker.spark.view import decoded

VIEW = "messages"
PASSED_ON = {  # beside a column `payload`: what the sink takes
    "kind": "string",
    "retain": "boolean",
    "properties": "array<struct<key:string,value:string>>",
}
SAID = "$published "  # before the names of what is published, beside the table's
_STATEFUL = ("Aggregate", "Deduplicate", "Join", "GroupsWithState", "TransformWithState", "Distinct")
_LEAVES_OUT = ("Filter", "Join", "Limit", "TransformWithState", "GroupsWithState", "Deduplicate", "Generate", "MapIn")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream is read, and how much at a time."""

    data: Path
    start: str = "earliest"
    max_rows: int = 500_000
    max_bytes: int = 128 << 20  # half of what the broker publishes at once
    fail_on_data_loss: bool = True


def frame(spark: SparkSession, pipeline: Pipeline, place: Place) -> DataFrame:
    """The file's rows, checked. `spark` is this pipeline's own session. Raises Problem."""
    try:
        made = _made(spark, pipeline, messages(spark, pipeline, place))
    except (Problem, Stopped):
        raise
    except BaseException as error:  # of Spark's parser and analysis, or of the file's own Python, which may raise any
        raise located(pipeline, error) from error
    _check(pipeline, made)
    return made


def messages(spark: SparkSession, pipeline: Pipeline, place: Place) -> DataFrame:
    """The decoded view, without what this pipeline has published itself."""
    options = {
        "path": str(place.data),
        "topics": pipeline.filters,
        "startingOffset": place.start,
        "maxRowsPerBatch": str(pipeline.rows or place.max_rows),
        "maxBytesPerBatch": str(place.max_bytes),
        "failOnDataLoss": str(place.fail_on_data_loss).lower(),
    }
    rows = spark.readStream.format("smb").options(**options).load()
    others = rows.where(F.col("client").isNull() | (F.col("client") != pipeline.client))
    view = decoded(others)
    return view.withWatermark("ts", pipeline.watermark) if pipeline.watermark else view


def _made(spark: SparkSession, pipeline: Pipeline, view: DataFrame) -> DataFrame:
    if pipeline.is_sql:
        view.createOrReplaceTempView(VIEW)
        return spark.sql(pipeline.text.rstrip().removesuffix(";"))  # with its header: so lines are the file's
    module = types.ModuleType(f"pipeline_{pipeline.name}")  # not importable: Spark sends its code to the workers
    module.__file__ = str(pipeline.file)
    exec(compile(pipeline.text, str(pipeline.file), "exec"), module.__dict__)
    made = module.transform(view)
    if not isinstance(made, DataFrame):
        raise Problem(pipeline.file, 1, f"transform must return a DataFrame, not {type(made).__name__}")
    return made


def _check(pipeline: Pipeline, made: DataFrame) -> None:
    if not made.isStreaming:
        raise Problem(pipeline.file, 1, f"it does not read {VIEW}")
    names = made.columns
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Problem(pipeline.file, 1, f"two columns are called {twice[0]}; rename one with AS")
    for key, columns in (("key", pipeline.key), ("topic", pipeline.topic.columns if pipeline.topic else ())):
        for column in columns:
            if column not in names:
                raise pipeline.problem(key, f"{key}: there is no column {column}; the columns are {', '.join(names)}")
            if isinstance(made.schema[column].dataType, StructType | ArrayType | MapType | VariantType):
                hint = "; of a window take window.start" if column == "window" else ""
                raise pipeline.problem(key, f"{key}: the column {column} is not a single value{hint}")
    if pipeline.table:
        _check_names(pipeline, made)


def _check_names(pipeline: Pipeline, made: DataFrame) -> None:
    """Of a table's columns and their fields: Delta does not tell case apart, and its merges fail with backticks."""
    if pipeline.key and (ticked := next((name for name in made.columns if "`" in name), None)):
        reason = f"the column {ticked} has a backtick in its name, which a table with a key cannot have"
        raise Problem(pipeline.file, 1, f"{reason}; rename it with AS")
    for struct in _structs(made.schema):
        seen: dict[str, str] = {}
        for name in struct.names:
            other = seen.setdefault(name.lower(), name)
            if other != name:
                reason = f"{other} and {name} differ only in case, which a table does not tell apart; rename one"
                raise Problem(pipeline.file, 1, reason)


def _structs(kind: DataType) -> Iterator[StructType]:
    if isinstance(kind, StructType):
        yield kind
        for field in kind.fields:
            yield from _structs(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _structs(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _structs(kind.keyType)
        yield from _structs(kind.valueType)


def is_stateful(made: DataFrame) -> bool:
    return _mentions(made, _STATEFUL)


def leaves_out(made: DataFrame) -> bool:
    """Whether some rows of `messages` may have no effect."""
    plan = _plan(made)
    own = "NOT (client#"  # the one filter that every pipeline has
    return any(word in line for line in plan.splitlines() for word in _LEAVES_OUT if own not in line)


def _mentions(made: DataFrame, words: tuple[str, ...]) -> bool:
    plan = _plan(made)
    return any(word in plan for word in words)


def _plan(made: DataFrame) -> str:
    return str(made._jdf.queryExecution().analyzed().treeString())


def _column(name: str) -> Column:
    """Whatever its name."""
    return F.col("`" + name.replace("`", "``") + "`")


# --- for tables ---


def storable(made: DataFrame) -> DataFrame:
    return made.select(*_storable(made))


def _storable(made: DataFrame) -> list[Column]:
    """Variants as JSON text: few readers of Delta know them."""
    columns = [(field, _column(field.name)) for field in made.schema.fields]
    return [
        F.to_json(column).alias(field.name) if isinstance(field.dataType, VariantType) else column
        for field, column in columns
    ]


# --- for topics ---


def published(made: DataFrame, template: Template) -> DataFrame:
    """topic and payload of each row; rows of which the template makes no valid topic are left out."""
    columns = _published(made, template)
    return made.select(*[column.alias(name) for name, column in columns.items()]).where(F.col("topic").isNotNull())


def stored_and_published(made: DataFrame, template: Template) -> DataFrame:
    """`storable`, and beside it, with other names, what is published of each row: see `parted`."""
    columns = [column.alias(SAID + name) for name, column in _published(made, template).items()]
    return made.select(*_storable(made), *columns)


def parted(both: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows for the table, and those that are published."""
    said = [name for name in both.column_names if name.startswith(SAID)]
    published = both.select(said).rename_columns([name.removeprefix(SAID) for name in said])
    return both.drop_columns(said), published.filter(pc.is_valid(published["topic"]))


def _published(made: DataFrame, template: Template) -> dict[str, Column]:
    columns = {"topic": _topic(template)}
    if "payload" not in made.columns:
        return columns | {"payload": _json(made, template)}
    payload = F.col("payload")
    if made.schema["payload"].dataType.typeName() not in ("binary", "string"):
        payload = payload.cast("string")
    others = {name: F.col(name).cast(kind) for name, kind in PASSED_ON.items() if name in made.columns}
    return columns | {"payload": payload} | others


def _topic(template: Template) -> Column:
    """Null if it is not a valid one."""
    parts = [_column(text).cast("string") if is_column else F.lit(text) for text, is_column in template.parts]
    topic = F.concat(*parts)
    size = F.octet_length(topic)
    whole = (size > 0) & (size <= MAX_TOPIC) & ~F.contains(topic, F.lit("\0"))
    if not template.text.startswith("$"):
        whole = whole & ~F.startswith(topic, F.lit("$"))  # a column may hold any text; those are not ours to publish
    return F.when(whole, topic)


def _json(made: DataFrame, template: Template) -> Column:
    columns = [
        _sayable(field.name, field.dataType) for field in made.schema.fields if field.name not in template.columns
    ]
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}) if columns else F.lit("{}")


def _sayable(name: str, kind: DataType) -> Column:
    column = _column(name)
    if kind.typeName() in ("double", "float"):  # JSON has no NaN and no infinity
        return F.when(F.abs(column) < float("inf"), column).alias(name)
    return column
