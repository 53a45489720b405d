"""What a query's logical plan tells before the query starts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.query.writer_plan import java_writer, plan_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "PlanNode",
    "QuerySource",
    "StatefulKind",
    "elements",
    "fingerprint_of",
    "has_watermark",
    "keeps_its_input",
    "listed_sources",
    "notices_reading",
    "plan_nodes",
    "recorded_kind",
    "sources_of",
    "stateful_kinds",
    "stateful_operators",
]

_WATERMARK = frozenset({"EventTimeWatermark", "UpdateEventTimeWatermarkColumn"})
_MOST_FIELDS = 25
_ALL_FIELDS = 2**31 - 1
#: What differs each time a query is built: ids of columns and watermarks, addresses of objects.
_OF_ONE_BUILD = re.compile(r"#\d+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|@[0-9a-f]+|0x[0-9a-f]+")
_SOURCES = frozenset({"StreamingRelation", "StreamingRelationV2"})
#: Sources that do nothing when Spark tells them that a batch is done; a file source may be asked to clean up.
_KEEPING = frozenset(
    {"avro", "binaryfile", "csv", "delta", "iceberg", "json", "kafka", "orc", "parquet", "rate", "rate-micro-batch"}
    | {"text", "xml"}
)
_CLEANS_UP = "cleansource"
#: Options by which a source joins, or writes, what is somebody else's too.
_SHARING = ("kafka.group.id", "schematrackinglocation", "schemalocation")
#: The format of a table of a catalog, by the class of the table.
_OF_TABLES = {"org.apache.iceberg.spark.source.SparkTable": "iceberg"}


class StatefulKind(StrEnum):
    """Kinds of stateful operators, named as in a checkpoint if the checkpoint has a single name for the kind."""

    AGGREGATION = "aggregation"
    DEDUPE = "dedupe"
    DEDUPE_WITHIN_WATERMARK = "dedupeWithinWatermark"
    GROUPS_WITH_STATE = "groupsWithState"
    JOIN = "symmetricHashJoin"
    LIMIT = "limit"
    TRANSFORM_WITH_STATE = "transformWithState"

    @property
    def is_never_optimized_away(self) -> bool:
        """Whether Spark runs every operator of this kind that the plan has."""
        return self not in {StatefulKind.AGGREGATION, StatefulKind.JOIN, StatefulKind.LIMIT}


#: By the operator's name in a query's plan. An operator has state only if its input is a stream.
_PLANNED = {
    "Aggregate": StatefulKind.AGGREGATION,
    "Distinct": StatefulKind.AGGREGATION,
    "Deduplicate": StatefulKind.DEDUPE,
    "DeduplicateWithinWatermark": StatefulKind.DEDUPE_WITHIN_WATERMARK,
    "FlatMapGroupsInPandasWithState": StatefulKind.GROUPS_WITH_STATE,
    "FlatMapGroupsWithState": StatefulKind.GROUPS_WITH_STATE,
    "GlobalLimit": StatefulKind.LIMIT,
    "Join": StatefulKind.JOIN,
    "TransformWithState": StatefulKind.TRANSFORM_WITH_STATE,
    "TransformWithStateInPandas": StatefulKind.TRANSFORM_WITH_STATE,
    "TransformWithStateInPySpark": StatefulKind.TRANSFORM_WITH_STATE,
}
#: By the operator's name in a checkpoint.
_RECORDED = {
    "applyInPandasWithState": StatefulKind.GROUPS_WITH_STATE,
    "dedupe": StatefulKind.DEDUPE,
    "dedupeWithinWatermark": StatefulKind.DEDUPE_WITHIN_WATERMARK,
    "flatMapGroupsWithState": StatefulKind.GROUPS_WITH_STATE,
    "globalLimit": StatefulKind.LIMIT,
    "sessionWindowStateStoreSaveExec": StatefulKind.AGGREGATION,
    "stateStoreSave": StatefulKind.AGGREGATION,
    "symmetricHashJoin": StatefulKind.JOIN,
    "transformWithStateExec": StatefulKind.TRANSFORM_WITH_STATE,
    "transformWithStateInPandasExec": StatefulKind.TRANSFORM_WITH_STATE,
    "transformWithStateInPySparkExec": StatefulKind.TRANSFORM_WITH_STATE,
}


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One operator of a query.

    Attributes:
        name: Spark's name for the operator; for a sink, its format.
        text: Spark's description, in one line.
        inputs: indexes of the operator's inputs in the list of all nodes.
        sink: whether the operator is the query's sink.
    """

    name: str
    text: str
    inputs: tuple[int, ...]
    sink: bool = False


@dataclass(frozen=True, slots=True)
class QuerySource:
    """A source of a query that has not started.

    Attributes:
        id: the id that Spark will give the source.
        format: Spark's name for the format, for example ``kafka``; empty if the plan does not tell.
        options: what the query says of the source, with the names as the query writes them; there may be secrets.
        table: the path or the name of the table that the source reads; empty if the plan does not tell.
        is_named: whether the query gives the source its id as a name.
        same_as: the id of the first source that is equal: Spark may run the two as one, at the place of the last.
    """

    id: str
    format: str
    options: Mapping[str, str] = field(repr=False)
    table: str = ""
    is_named: bool = False
    same_as: str = ""

    def option(self, name: str) -> str | None:
        """An option, whose name may be written in upper or lower case."""
        return {key.lower(): value for key, value in self.options.items()}.get(name.lower())


def has_watermark(writer: DataStreamWriter) -> bool:
    """Whether the query has a watermark anywhere.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    java_writer(writer)
    return any(str(node.nodeName()) in _WATERMARK for node in _operators(_analyzed(writer)))


def plan_nodes(writer: DataStreamWriter) -> list[PlanNode]:
    """The operators of a query, each after its inputs, with the sink at the end.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    sink = plan_of(writer)
    nodes: list[PlanNode] = []
    _add(_analyzed(writer), nodes)
    where = "" if sink.path is None else f" {sink.path}"
    return [*nodes, PlanNode(sink.format, f"{sink.format}{where}", (len(nodes) - 1,), sink=True)]


def fingerprint_of(writer: DataStreamWriter) -> str:
    """A digest of a query's plan: the same for the same query in the same release of Spark, whenever it is built.

    A query with something in its plan that each build makes anew has another digest each time.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    java_writer(writer)
    operators = _operators(_analyzed(writer))
    every = [f"{node.simpleString(_ALL_FIELDS)} {node.schema().json()}" for node in operators]
    text = "\n".join([str(writer._spark.version), *every])  # noqa: SLF001 - PySpark's writer has no getter for it
    return hashlib.sha256(_OF_ONE_BUILD.sub("", text).encode()).hexdigest()


def sources_of(writer: DataStreamWriter) -> range:
    """The possible numbers of sources that Spark may give a query.

    Each relation that reads a stream becomes a source. Equal relations become one source, or separate sources if
    Spark's analyzer finds that they would clash; Spark decides when the query starts.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    java_writer(writer)
    relations, different = _relations(writer)
    return range(len(different), len(relations) + 1)


def keeps_its_input(writer: DataStreamWriter) -> bool:
    """Whether no source of a query deletes or acknowledges anything when Spark tells it that a batch is done.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    return all(
        source.format in _KEEPING and _CLEANS_UP not in str(source.options).lower() for source in listed_sources(writer)
    )


def notices_reading(writer: DataStreamWriter) -> str:
    """Why somebody may notice that a source of a query is opened or read once more; empty if nobody does.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    for source in listed_sources(writer):
        if source.format not in _KEEPING:
            return f"source {source.id} ({source.format or 'of no known format'}) may notice that it is read"
        for option in _SHARING:
            if source.option(option) is not None:
                return f"source {source.id} ({source.format}) has the option {option}, which the job's run has, too"
    return ""


def listed_sources(writer: DataStreamWriter) -> list[QuerySource]:
    """The sources of a query, with the ids of Spark's offset log: the names that the query gives them, or numbers.

    A source that the query uses twice has two numbers there.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    java_writer(writer)
    relations, different = _relations(writer)
    listed = [_listed(number, relation) for number, relation in enumerate(relations)]
    kinds = [next(n for n, other in enumerate(different) if relation.equals(other)) for relation in relations]
    return [replace(source, same_as=listed[kinds.index(kind)].id) for source, kind in zip(listed, kinds, strict=True)]


def stateful_kinds(writer: DataStreamWriter) -> Counter[StatefulKind]:
    """The number of operators of each stateful kind in a query's plan, before Spark optimizes the plan.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    return Counter(kind for kind, _ in stateful_operators(writer))


def stateful_operators(writer: DataStreamWriter) -> Iterator[tuple[StatefulKind, Any]]:
    """The operators with state in a query's plan, each as Java's object, before Spark optimizes the plan.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    java_writer(writer)
    for node in _operators(_analyzed(writer)):
        kind = _PLANNED.get(str(node.nodeName()))
        # A join with a table keeps no state. Other operators may read a table for their initial state.
        streams = sum(bool(child.isStreaming()) for child in _children(node))
        if kind is not None and streams >= (2 if kind is StatefulKind.JOIN else 1):
            yield kind, node


def recorded_kind(name: str) -> StatefulKind | None:
    """The kind of an operator by its name in a checkpoint, ``None`` for an unknown name."""
    return _RECORDED.get(name)


def _relations(writer: DataStreamWriter) -> tuple[list[Any], list[Any]]:
    """The relations that read a stream, and those of them that differ."""
    relations = [node for node in _operators(_analyzed(writer)) if str(node.nodeName()) in _SOURCES]
    different: list[Any] = []
    for relation in relations:
        if not any(relation.equals(other) for other in different):
            different.append(relation)
    return relations, different


def _listed(number: int, relation: Any) -> QuerySource:
    from py4j.protocol import Py4JError  # noqa: PLC0415 - PySpark is loaded where it runs

    try:
        id_, is_named = str(relation.sourceIdentifyingName().name()), True
    except Py4JError:  # without a name, or of a Spark that names none
        id_, is_named = str(number), False
    if str(relation.nodeName()) == "StreamingRelationV2":
        options = dict(relation.extraOptions().asCaseSensitiveMap())
        table = relation.table()
        # By readStream.table() Spark has the name of the table in the place of the format.
        format_ = _OF_TABLES.get(str(table.getClass().getName()), str(relation.sourceName()).lower())
        return QuerySource(id_, format_, options, str(table.name()), is_named)
    source = relation.dataSource()
    listed = QuerySource(id_, str(source.className()).lower(), _dict(source.options()), is_named=is_named)
    return replace(listed, table=listed.option("path") or "")


def _dict(options: Any) -> dict[str, str]:
    """A map of Scala's."""
    pairs = elements(options.toSeq())
    return {str(pair._1()): str(pair._2()) for pair in pairs}  # noqa: SLF001 - so Scala names what a pair has


def _analyzed(writer: DataStreamWriter) -> Any:
    return writer._df._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark's writer has no getter for it


def _children(operator: Any) -> list[Any]:
    return elements(operator.children())


def elements(every: Any) -> list[Any]:
    """What is in a sequence of Scala's."""
    return [every.apply(number) for number in range(every.size())]


def _operators(operator: Any) -> Iterator[Any]:
    yield operator
    for child in _children(operator):
        yield from _operators(child)


def _add(operator: Any, nodes: list[PlanNode]) -> int:
    """Add an operator after its inputs; returns the operator's index."""
    inputs = tuple([_add(child, nodes) for child in _children(operator)])
    nodes.append(PlanNode(str(operator.nodeName()), str(operator.simpleString(_MOST_FIELDS)).strip(), inputs))
    return len(nodes) - 1
