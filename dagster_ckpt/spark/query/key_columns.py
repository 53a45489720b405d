"""By which columns the operators of a query keep state, of which Spark compares the types and not the names."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint import StateKeys
from dagster_ckpt.shown_text import first_line
from dagster_ckpt.spark.query.logical_plan import StatefulKind, elements, stateful_operators

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["state_keys"]

_log = logging.getLogger(__name__)

#: Where an operator of a plan has its keys.
_KEYS = {
    "Aggregate": "groupingExpressions",
    "Deduplicate": "keys",
    "DeduplicateWithinWatermark": "keys",
    "Distinct": "output",
    "FlatMapGroupsInPandasWithState": "groupingAttributes",
    "FlatMapGroupsWithState": "groupingAttributes",
    "TransformWithState": "groupingAttributes",
    "TransformWithStateInPandas": "leftAttributes",
    "TransformWithStateInPySpark": "leftAttributes",
}
_COLUMN = "AttributeReference"
#: Spark names a column that is computed, and that nobody has named, by its text: a function, an operator, or a field. A
#: text may have the number that a column has in this JVM.
_OF_TEXT = re.compile(r"[(\[]|#\d")
_LONGEST = 1000


def state_keys(writer: DataStreamWriter) -> list[StateKeys] | None:
    """The columns by which each stateful operator of a query keeps state, in the order of the plan.

    The names are those of the plan before Spark optimizes it, so they depend on the query alone.

    Returns:
        ``None`` if this Spark's plan does not tell.

    Raises:
        InvalidConfiguration: ``writer`` is not a ``DataStreamWriter`` of a classic session.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - PySpark is loaded where it runs
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        return [
            StateKeys(operator=kind.value, columns=[_name(key) for key in _keys(writer, kind, node)])
            for kind, node in stateful_operators(writer)
        ]
    except (PySparkException, Py4JError) as error:
        _log.info("By which columns the query keeps its state is not known: %s", first_line(error))
        return None


def _keys(writer: DataStreamWriter, kind: StatefulKind, node: Any) -> list[Any]:
    if kind is StatefulKind.JOIN:
        jvm: Any = writer._spark._jvm  # noqa: SLF001 - PySpark's writer has no getter for it
        found = jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys.unapply(node)
        if not found.isDefined():
            return []  # what is compared is not in the join itself
        pair = found.get()
        return [*elements(pair._2()), *elements(pair._3())]  # noqa: SLF001 - so Scala names what a tuple has
    get = _KEYS.get(str(node.nodeName()))
    return [] if get is None else elements(getattr(node, get)())


def _name(key: Any) -> str | None:
    name = str(key.name()) if str(key.getClass().getSimpleName()) == _COLUMN else None
    return None if name is None or _OF_TEXT.search(name) or len(name) > _LONGEST else name
