"""What a checkpoint keeps of Spark's progress report."""

from __future__ import annotations

from typing import Any

from dagster_ckpt.checkpoint.format.facts import Facts, Operator, Source
from dagster_ckpt.spark.capture.source import _numbers


def _facts(*names: str) -> Facts:
    operators = [Operator(id=str(id_), name=name, partitions=2, stores=[]) for id_, name in enumerate(names)]
    return Facts(operators=operators, sources=[Source(id="0", offset=None)])


def _report(*rows: tuple[str, int]) -> dict[str, Any]:
    operators = [{"operatorName": name, "numRowsTotal": count, "memoryUsedBytes": 10} for name, count in rows]
    return {"batchId": 3, "stateOperators": operators, "sources": [{}]}


def test_keys_are_kept_by_operator_where_spark_tells_which_operator_has_them() -> None:
    found = _numbers(_report(("stateStoreSave", 4), ("dedupe", 9)), _facts("dedupe", "stateStoreSave"))
    assert (found["operator_0_keys"], found["operator_1_keys"]) == (9, 4)
    assert (found["state_rows"], found["state_memory_bytes"]) == (13, 20)
    twice = _numbers(_report(("dedupe", 4), ("dedupe", 9)), _facts("dedupe", "dedupe"))
    assert twice["state_rows"] == 13
    assert not [name for name in twice if name.startswith("operator_")]
