"""What can be read of a query's logical plan before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.writer import plan_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["PlanNode", "has_watermark", "plan_nodes"]

_WATERMARK = frozenset({"EventTimeWatermark", "UpdateEventTimeWatermarkColumn"})
_MOST_FIELDS = 25


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
