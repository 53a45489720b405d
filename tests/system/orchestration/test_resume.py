"""A run dies in the middle of a batch; the sensor resumes it from its newest checkpoint."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg
import psutil
import pytest

from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.events.occurrence import EVENT
from tests.system.orchestration.watch import JobWatch

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
pytestmark = pytest.mark.timeout(2400)

_NUMBERS = ("checkpoint_id", "epoch", "batch", "files", "bytes", "new_bytes", "duration_ms", "pin_ms", "retained_bytes")


def test_a_killed_run_is_resumed_exactly_without_its_live_location(watch: Callable[[str], JobWatch]) -> None:
    job = watch("killed")
    job.pipeline.land(5)
    first = job.launch()
    job.hold_mid_batch(first)
    newest = job.completed()[-1]
    _assert_second_run_gives_way(job, first)

    job.pipeline.until_caught_up.touch()
    job.kill_driver()
    job.forget_live_location()
    job.pipeline.release()
    second = job.wait_resumed(first)
    assert second.tags[names.JOB_TAG] == "killed"
    assert second.tags[names.ATTEMPT_TAG] == "1"
    assert second.tags[names.RESTORED_FROM_TAG] == newest.reference
    assert second.tags[names.ROOT_RUN_TAG] == first
    job.assert_succeeds(second.run_id)

    assert job.choice().restored == newest.reference
    job.pipeline.assert_exact()
    retained = job.assert_all_verify()
    assert len(retained) == 3
    assert {metadata.job_id for metadata in retained} == {first.replace("-", "")}
    job.assert_shown()
    _assert_told(job, retained)
    _assert_seen(job, first)
    with job.dev.instance() as instance:
        finished = instance.get_run_by_id(second.run_id)
    assert finished is not None
    assert finished.tags[names.JOB_ID_TAG] == first.replace("-", "")
    assert job.wait_tick("it ended FINISHED")
    assert len(job.dev.runs("killed")) == 3, "the refused run and two that ran"


@pytest.mark.exhaustive
def test_a_run_whose_jvm_is_killed_goes_on_in_another_jvm(watch: Callable[[str], JobWatch]) -> None:
    job = watch("lost_jvm")
    job.pipeline.land(2)
    first = job.launch()
    job.hold_mid_batch(first)
    job.pipeline.until_caught_up.touch()
    os.kill(job.heartbeat().processes[1].pid, signal.SIGKILL)
    job.pipeline.release()
    job.assert_succeeds(first)
    job.pipeline.assert_exact()
    assert len(job.failures()) == 1
    assert len(job.dev.runs("lost_jvm")) == 1


@pytest.mark.exhaustive
def test_a_killed_run_worker_of_the_multiprocess_executor_takes_its_step_and_jvm_with_it(
    watch: Callable[[str], JobWatch],
) -> None:
    job = watch("materialized")
    job.pipeline.land(2)
    first = job.materialize()
    job.hold_mid_batch(first)
    job.pipeline.until_caught_up.touch()
    processes = job.heartbeat().processes
    worker = psutil.Process(processes[0].pid).parent()
    assert worker is not None
    assert "grpc" not in worker.cmdline(), "the process of the run, not the code server"
    worker.kill()
    job.wait_gone(processes)
    assert job.wait_end(first) == "FAILURE"
    job.pipeline.release()
    second = job.wait_resumed(first)
    job.assert_succeeds(second.run_id)
    job.pipeline.assert_exact()
    job.assert_all_verify()
    starts = job.catalog.records.starts.newest(2)
    jvms = [{"JVM", "standby"} & {step.name for step in start.steps} for start in starts]
    assert jvms == [{"JVM"}, {"standby"}], "the second one was launched with the run, and waited for its step"


def _assert_second_run_gives_way(job: JobWatch, first: str) -> None:
    """The tag's limit would queue a second run of the job; one launched from the asset graph has no tag."""
    epoch = job.epoch()
    refused = job.materialize()
    assert job.wait_end(refused) == "CANCELED", "a failed run would alert people"
    with job.dev.instance() as instance:
        told = [entry.message for entry in instance.all_logs(refused)]
    assert any(f"run by run {first}" in text and "This run is not needed" in text for text in told)
    assert job.epoch() == epoch, "a refused run must not fence the one that runs"
    assert job.dev.status(first) == "STARTED"


def _assert_seen(job: JobWatch, killed: str) -> None:
    """What went wrong is told on the asset: the death of the first run, and nothing of the second, which gave way."""
    with job.dev.instance() as instance:
        records = instance.fetch_observations(dg.AssetKey([job.name]), limit=200, ascending=True).records
    seen = [item for record in records if (item := record.asset_observation) is not None and EVENT in item.tags]
    assert [item.tags[EVENT] for item in seen] == ["restart"]
    (restart,) = ({key: str(value.value) for key, value in item.metadata.items()} for item in seen)
    assert killed in restart["reason"]
    assert "is gone" in restart["reason"]


def _assert_told(job: JobWatch, retained: list[Any]) -> None:
    """Each retained checkpoint is a materialization with numbers; each that went has an observation."""
    key = dg.AssetKey([f"{job.name}_checkpoints"])
    with job.dev.instance() as instance:
        materialized = {
            record.partition_key: record for record in instance.fetch_materializations(key, limit=200).records
        }
        observed = {record.partition_key: record for record in instance.fetch_observations(key, limit=200).records}
    for metadata in retained:
        event = materialized[names.partition_key(metadata)].asset_materialization
        assert event is not None
        told: Mapping[str, Any] = {name: value.value for name, value in event.metadata.items()}
        assert all(isinstance(told[name], int | float) for name in _NUMBERS), told
        assert told["batch"] == metadata.batch
        assert told["bytes"] == metadata.size
        assert told["pointer"] == job.catalog.pointer(metadata)
    newest = materialized[names.partition_key(retained[-1])].asset_materialization
    assert newest is not None
    shown = newest.metadata["retained"]
    assert isinstance(shown, dg.TableMetadataValue)
    # The newest checkpoint is told before the checkpoints that it subsumes are gone.
    names_shown = [row.data["checkpoint"] for row in shown.records]
    assert names_shown[: len(retained)] == [item.name for item in reversed(retained)]
    gone = set(materialized) - {names.partition_key(metadata) for metadata in retained}
    assert gone
    assert set(observed) == gone
    for record in observed.values():
        assert record.asset_observation is not None
        assert "not among the 3 newest" in str(record.asset_observation.metadata["reason"].value)
