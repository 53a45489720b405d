"""A scheduled pipeline: each tick reads what has landed since the one before, from the checkpoint that one left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from tests.system.orchestration.watch import JobWatch

# A Dagster, and a Spark for each run: minutes where others use the machine too, far less where not.
# The same without Dagster is in `jobs/running/test_ticks.py`.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2400)]


def test_three_ticks_the_second_one_killed_read_everything_once(
    watch: Callable[[str], JobWatch], tmp_path: Path
) -> None:
    job = watch("ticking")
    job.pipeline.land(2)
    job.pipeline.until_caught_up.touch()
    first = job.launch()
    job.assert_succeeds(first)
    job.pipeline.assert_exact()
    left = job.completed()[-1]

    job.pipeline.land(3)
    job.pipeline.hold_from(4)
    second = job.launch()
    job.wait_checkpoints(second, 1)
    assert job.choice().restored == left.reference
    job.wait_in_flight(second)
    job.kill_driver()
    job.forget_live_location()
    job.pipeline.release()
    resumed = job.wait_resumed(second)
    job.assert_succeeds(resumed.run_id)
    job.pipeline.assert_exact()
    left = job.completed()[-1]

    job.pipeline.land(2)
    third = job.launch()
    job.assert_succeeds(third)
    assert job.choice().restored == left.reference
    job.pipeline.assert_exact()
    assert {metadata.job_id for metadata in job.assert_all_verify()} == {first.replace("-", "")}
    read = _files_read(job, job.completed()[-1], tmp_path / "restored")
    assert sorted(read) == sorted(file.name for file in job.pipeline.landing.glob("*.json"))


def _files_read(job: JobWatch, checkpoint: CheckpointMetadata, target: Path) -> list[str]:
    """Every file that the source's log in a checkpoint names, as often as it does."""
    materialize_checkpoint(job.catalog, checkpoint, target)
    logs = (target / "checkpoint" / "sources" / "0").iterdir()
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
    return [Path(json.loads(line)["path"]).name for line in lines]
