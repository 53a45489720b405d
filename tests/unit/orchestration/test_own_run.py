"""What a run's process makes of what Dagster says of the run."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import SparkSubmitResource
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.attending.own_run import OwnRun
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id

Status = dg.DagsterRunStatus


@dg.job
def streaming() -> None:
    pass


@pytest.mark.parametrize(
    ("status", "canceled", "over"),
    [
        (Status.STARTED, False, False),
        (Status.CANCELING, True, False),  # the interrupt is on its way
        (Status.CANCELED, True, True),
        (Status.FAILURE, False, True),
    ],
)
def test_an_interrupt_is_a_cancellation_if_dagster_says_so(status: Status, canceled: bool, over: bool) -> None:
    clock = ManualClock()
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(streaming, run_id=run_id(), status=status)
        own = OwnRun(instance, run.run_id, clock)
        assert own.is_canceled() is canceled
        own.look()  # it has only begun
        clock.advance(10)
        if over:
            with pytest.raises(dg.DagsterExecutionInterruptedError):
                own.look()
        own.look()  # and not again at once
        clock.advance(9)
        own.look()


def test_a_run_that_dagster_does_not_know_goes_on() -> None:
    clock = ManualClock()
    with dg.DagsterInstance.ephemeral() as instance:
        own = OwnRun(instance, run_id(), clock)
        clock.advance(10)
        own.look()
        assert not own.is_canceled()


def test_a_job_that_is_canceled_outside_of_dagster_ends_its_run_as_canceled(tmp_path: Path) -> None:
    """``dagster-ckpt cancel`` asks the driver, and Dagster hears of the end from the run that attends the driver."""
    job = StoredJob(tmp_path / "storage")
    claim = job.claim(run_id())
    job.catalog.records.submissions.replace(Submission(claim.run_id, 0, None, "{}", 1.0))
    job.checkpoint(job.choose(claim), 1)
    job.end(claim, "CANCELED", "canceled")
    job.beat(claim, alive=False, stopped=True)
    spark = SparkSubmitResource(definitions="some_project.definitions:defs")
    tags = {names.ATTENDS_TAG: claim.run_id, names.PARENT_RUN_TAG: claim.run_id}
    with dg.DagsterInstance.ephemeral() as instance:
        with pytest.raises(dg.DagsterExecutionInterruptedError):
            dg.materialize(
                [make_asset()],
                resources={"checkpoint_storage": job.storage, "spark": spark},
                instance=instance,
                tags=tags,
            )
        (run,) = instance.get_runs()
        assert run.status is Status.CANCELED
        (told,) = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_CANCELING)
        assert "canceled outside of Dagster" in str(told.message)
