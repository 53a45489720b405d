"""What is said of another number of state partitions before anything is changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.format.facts import Facts, Operator
from dagster_ckpt.config import HDFS_PROVIDER, ROCKSDB_PROVIDER
from dagster_ckpt.spark.rescale.checks import Rescale, rescale_finding
from dagster_ckpt.spark.sinks.spark_file_sink import SparkFileSink
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from dagster_ckpt.spark.verdict import Verdict
from tests.helpers.checkpoint.manifests import MANIFEST

_OPERATOR = Operator(id="0", name="stateStoreSave", partitions=4, stores=["default"])
_FACTS = Facts(
    state_store_provider=ROCKSDB_PROVIDER,
    operators=[_OPERATOR],
    sql_confs={"spark.sql.shuffle.partitions": "4"},
)
_RESTORED = replace(MANIFEST, facts=_FACTS)
_ASKED = Rescale(7, "4.3.0")
_REPLACING = ForeachBatchSink("rows", lambda rows, batch: None)


class _NeedsEach(SparkFileSink):
    """A sink of another package that does not say what it can do without."""

    can_skip_a_batch = False


def test_what_becomes_of_the_number_is_told() -> None:
    found = rescale_finding(_ASKED, _RESTORED)
    assert (found.verdict, found.check) == (Verdict.RESTORABLE, "state partitions")
    assert found.reason == "4 in the checkpoint, and 7 in the copy that is restored."
    assert rescale_finding(replace(_ASKED, sink=_REPLACING), _RESTORED).verdict is Verdict.RESTORABLE
    assert rescale_finding(replace(_ASKED, spark_version="4.2.1", job_partitions=7), _RESTORED) == found


@pytest.mark.parametrize(
    ("asked", "facts", "why"),
    [
        ({"spark_version": "4.1.3"}, {}, "Spark repartitions state from 4.2 on"),
        ({"number": 4}, {}, "has 4 already"),
        ({"on_disk": False}, {}, "in a bucket"),
        ({"location": Path("/data/a b")}, {}, "'/data/a b'"),
        ({"location": Path("/data/a%20b")}, {}, "characters that a URL escapes"),
        ({"job_partitions": 5}, {}, "the job itself is to have 5"),
        ({"sink": _NeedsEach("/data/out")}, {}, "not known to do without a batch"),
        ({"sink": _REPLACING, "later": [9, 10]}, {}, "batch 9 may have been written"),
        ({}, {"state_store_provider": HDFS_PROVIDER}, "HDFSBackedStateStoreProvider"),
        ({}, {"operators": []}, "keeps none"),
        ({}, {"sql_confs": {}}, "does not tell how many"),
        ({}, {"operators": [_OPERATOR.model_copy(update={"partitions": 1})]}, "one partition"),
        ({}, {"operators": [_OPERATOR.model_copy(update={"name": "globalLimit"})]}, "one partition"),
    ],
)
def test_what_is_impossible_has_a_reason_and_a_next_step(
    asked: dict[str, object], facts: dict[str, object], why: str
) -> None:
    restored = replace(_RESTORED, facts=_FACTS.model_copy(update=facts))
    found = rescale_finding(replace(_ASKED, **asked), restored)  # type: ignore[arg-type]
    assert found.verdict is Verdict.NOT_RESTORABLE
    assert why in found.reason
    assert found.hint.startswith("Nothing was touched. ")


def test_a_later_spark_is_no_way_on_before_iceberg_is_for_it() -> None:
    for kind, told in (("iceberg", ", once Iceberg has a release for that Spark;"), ("delta", "Spark 4.2 or later;")):
        restored = replace(_RESTORED, sink={**(_RESTORED.sink or {}), "kind": kind})
        assert told in rescale_finding(replace(_ASKED, spark_version="4.1.3"), restored).hint


def test_a_start_that_died_has_done_it() -> None:
    facts = _FACTS.model_copy(update={"sql_confs": {"spark.sql.shuffle.partitions": "7"}})
    done = replace(_RESTORED, facts=facts, kind="rescale")
    assert rescale_finding(_ASKED, done).verdict is Verdict.RESTORABLE
    assert rescale_finding(_ASKED, replace(done, kind="checkpoint")).verdict is Verdict.NOT_RESTORABLE


def test_a_key_without_a_column_is_one_key(tmp_path: Path) -> None:
    one = _FACTS.model_copy(
        update={
            "operators": [_OPERATOR.model_copy(update={"partitions": 1})],
            "sql_confs": {"spark.sql.shuffle.partitions": "1"},
        }
    )
    schema = tmp_path / "state" / "0" / "0" / "_metadata" / "schema"
    schema.parent.mkdir(parents=True)
    asked, restored = replace(_ASKED, location=tmp_path), replace(_RESTORED, facts=one)
    for fields, verdict in (("", Verdict.NOT_RESTORABLE), ('{"name":"k"}', Verdict.RESTORABLE)):
        schema.write_bytes(b'\0\2v2\0\0\0\1\0\x1d{"type":"struct","fields":[' + fields.encode() + b"]}\0\0\0\1")
        assert rescale_finding(asked, restored).verdict is verdict
