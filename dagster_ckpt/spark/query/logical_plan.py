"""What a query's logical plan tells before the query starts."""

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


def has_watermark(writer: DataStreamWriter) -> bool:
    """Whether the query has a watermark anywhere.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    plan_of(writer)
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


def sources_of(writer: DataStreamWriter) -> range:
    """The possible numbers of sources that Spark may give a query.

    Each relation that reads a stream becomes a source. Equal relations become one source, or separate sources if
    Spark's analyzer finds that they would clash; Spark decides when the query starts.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    plan_of(writer)
    relations = [node for node in _operators(_analyzed(writer)) if str(node.nodeName()) in _SOURCES]
    different: list[Any] = []
    for relation in relations:
        if not any(relation.equals(other) for other in different):
            different.append(relation)
    return range(len(different), len(relations) + 1)


def stateful_kinds(writer: DataStreamWriter) -> Counter[StatefulKind]:
    """The number of operators of each stateful kind in a query's plan, before Spark optimizes the plan.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    plan_of(writer)
    found: Counter[StatefulKind] = Counter()
    for node in _operators(_analyzed(writer)):
        kind = _PLANNED.get(str(node.nodeName()))
        # A join with a table keeps no state. Other operators may read a table for their initial state.
        streams = sum(bool(child.isStreaming()) for child in _children(node))
        if kind is not None and streams >= (2 if kind is StatefulKind.JOIN else 1):
            found[kind] += 1
    return found


def recorded_kind(name: str) -> StatefulKind | None:
    """The kind of an operator by its name in a checkpoint, ``None`` for an unknown name."""
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
    """Add an operator after its inputs; returns the operator's index."""
    inputs = tuple([_add(child, nodes) for child in _children(operator)])
    nodes.append(PlanNode(str(operator.nodeName()), str(operator.simpleString(_MOST_FIELDS)).strip(), inputs))
    return len(nodes) - 1
