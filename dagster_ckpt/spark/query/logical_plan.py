"""What can be read of a query's logical plan before it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.query.writer_plan import plan_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "PlanNode",
    "StatefulKind",
    "has_watermark",
    "plan_nodes",
    "recorded_kind",
    "sources_of",
    "stateful_kinds",
]

_WATERMARK = frozenset({"EventTimeWatermark", "UpdateEventTimeWatermarkColumn"})
_MOST_FIELDS = 25
_SOURCES = frozenset({"StreamingRelation", "StreamingRelationV2"})


class StatefulKind(StrEnum):
    """Kinds of stateful operators, named as in a checkpoint where that has one name."""

    AGGREGATION = "aggregation"
    DEDUPE = "dedupe"
    DEDUPE_WITHIN_WATERMARK = "dedupeWithinWatermark"
    GROUPS_WITH_STATE = "groupsWithState"
    JOIN = "symmetricHashJoin"
    LIMIT = "limit"
    TRANSFORM_WITH_STATE = "transformWithState"

    @property
    def is_never_optimized_away(self) -> bool:
        """Whether what stands in the plan of a query is what is run."""
        return self not in {StatefulKind.AGGREGATION, StatefulKind.JOIN, StatefulKind.LIMIT}


#: By the name of the operator in the plan of a query. On rows that are not a stream none of them has state.
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
#: By the name of the operator in a checkpoint.
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
        name: Spark's name of it, of a sink its format.
        text: Spark's description, in one line.
        inputs: places, in the list of all nodes, of those it reads from.
        sink: whether it is where the query writes to.
    """

    name: str
    text: str
    inputs: tuple[int, ...]
    sink: bool = False


def has_watermark(writer: DataStreamWriter) -> bool:
    """Whether the query has a watermark anywhere.

    Raises:
        InvalidConfiguration: it is not a ``DataStreamWriter`` of a classic session.
    """
    plan_of(writer)
    return any(str(node.nodeName()) in _WATERMARK for node in _operators(_analyzed(writer)))


def plan_nodes(writer: DataStreamWriter) -> list[PlanNode]:
    """The operators of a query, each after those it reads from, and its sink at the end.

    Raises:
        InvalidConfiguration: it is not a ``DataStreamWriter`` of a classic session.
    """
    sink = plan_of(writer)
    nodes: list[PlanNode] = []
    _add(_analyzed(writer), nodes)
    where = "" if sink.path is None else f" {sink.path}"
    return [*nodes, PlanNode(sink.format, f"{sink.format}{where}", (len(nodes) - 1,), sink=True)]


def sources_of(writer: DataStreamWriter) -> range:
    """How many sources Spark may give a query.

    There is one for each relation that reads a stream. Of equal ones Spark makes different ones when it starts the
    query, where its analyzer finds that they would clash, and one source where it does not.

    Raises:
        InvalidConfiguration: it is not a ``DataStreamWriter`` of a classic session.
    """
    plan_of(writer)
    relations = [node for node in _operators(_analyzed(writer)) if str(node.nodeName()) in _SOURCES]
    different: list[Any] = []
    for relation in relations:
        if not any(relation.equals(other) for other in different):
            different.append(relation)
    return range(len(different), len(relations) + 1)


def stateful_kinds(writer: DataStreamWriter) -> Counter[StatefulKind]:
    """How many operators of each stateful kind the plan of a query has, before it is optimized.

    Raises:
        InvalidConfiguration: it is not a ``DataStreamWriter`` of a classic session.
    """
    plan_of(writer)
    found: Counter[StatefulKind] = Counter()
    for node in _operators(_analyzed(writer)):
        kind = _PLANNED.get(str(node.nodeName()))
        # A join with a table keeps no state; other operators may have one for their initial state.
        streams = sum(bool(child.isStreaming()) for child in _children(node))
        if kind is not None and streams >= (2 if kind is StatefulKind.JOIN else 1):
            found[kind] += 1
    return found


def recorded_kind(name: str) -> StatefulKind | None:
    """The kind of an operator that a checkpoint names, ``None`` for one that is not known here."""
    return _RECORDED.get(name)


def _analyzed(writer: DataStreamWriter) -> Any:
    return writer._df._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark's writer has no getter for it


def _children(operator: Any) -> list[Any]:
    children = operator.children()
    return [children.apply(number) for number in range(children.size())]


def _operators(operator: Any) -> Iterator[Any]:
    yield operator
    for child in _children(operator):
        yield from _operators(child)


def _add(operator: Any, nodes: list[PlanNode]) -> int:
    """Add an operator after those below it; returns its place."""
    inputs = tuple([_add(child, nodes) for child in _children(operator)])
    nodes.append(PlanNode(str(operator.nodeName()), str(operator.simpleString(_MOST_FIELDS)).strip(), inputs))
    return len(nodes) - 1
