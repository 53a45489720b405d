"""What a run's process makes of what Dagster says of the run."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import JobCanceledData, JobFailureData, RunFailureReason
from dagster._core.execution.plan.objects import ErrorSource

from dagster_ckpt import SparkSubmitResource
from dagster_ckpt.checkpoint.submissions import Submission
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.attending.interruption import interrupts_in_words
from dagster_ckpt.orchestration.attending.own_run import OwnRun
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.checkpoint.submitting import submitted
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
    submitted(job.catalog.records, Submission(claim.run_id, 0, None, "{}", 1.0))
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
        (failed,) = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        event = failed.dagster_event
        assert event is not None
        error = event.step_failure_data.error
        assert error is not None
        assert "Interrupted" in str(error.cls_name)
        assert "This run was terminated" in error.message


def test_an_interrupt_stays_one_when_dagster_cannot_say_who_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("the database is away")

    with dg.DagsterInstance.ephemeral() as instance:
        monkeypatch.setattr(instance, "get_run_by_id", fails)
        interrupt = dg.DagsterExecutionInterruptedError()
        with (
            pytest.raises(dg.DagsterExecutionInterruptedError) as raised,
            interrupts_in_words(instance, run_id()),
        ):
            raise interrupt
    assert raised.value is interrupt


@dg.op
def stream() -> None:
    """Is terminated as Dagster's UI does it: the run is marked, and then its process gets SIGTERM."""
    context = dg.OpExecutionContext.get()
    with interrupts_in_words(context.instance, context.run_id):
        if context.run_tags.get("by") != "its host":
            context.instance.report_run_canceling(context.run)
        in_own_process = context.job_def.executor_def is dg.multiprocess_executor
        os.kill(os.getppid() if in_own_process else os.getpid(), signal.SIGTERM)
        time.sleep(60)


@dg.failure_hook
def alerts(context: dg.HookContext) -> None: ...


@dg.job(executor_def=dg.in_process_executor, hooks={alerts})
def as_a_stream_has_it() -> None:
    stream()


@dg.job(executor_def=dg.multiprocess_executor, hooks={alerts})
def as_an_asset_page_has_it() -> None:
    stream()


@pytest.mark.parametrize("redacts", [False, True], ids=["", "redacted"])
@pytest.mark.parametrize("by", ["a click", "its host"])
@pytest.mark.parametrize("job", [as_a_stream_has_it, as_an_asset_page_has_it], ids=["in-process", "multiprocess"])
def test_an_interrupted_run_says_who_has_ended_it(
    monkeypatch: pytest.MonkeyPatch, job: dg.JobDefinition, by: str, redacts: bool
) -> None:
    monkeypatch.setenv("DAGSTER_REDACT_USER_CODE_ERRORS", str(redacts))
    with (
        dg.instance_for_test() as instance,
        dg.execute_job(dg.reconstructable(job), instance, tags={"by": by}) as result,
    ):
        run = instance.get_run_by_id(result.run_id)
        told = [entry.dagster_event for entry in instance.all_logs(result.run_id) if entry.dagster_event is not None]
    assert run is not None
    assert run.status is (Status.CANCELED if by == "a click" else Status.FAILURE)
    (step,) = [event.step_failure_data for event in told if event.is_step_failure]
    assert step.error is not None
    assert ("This run was terminated" if by == "a click" else "This run was told to end") in step.error.message
    assert step.error_source is ErrorSource.INTERRUPT
    is_spawned = job is as_an_asset_page_has_it
    assert (step.error.stack == []) == (is_spawned or redacts), (
        "a step in a process of its own shows the sentence alone"
    )
    (end,) = [data for event in told if isinstance(data := event.event_specific_data, JobCanceledData | JobFailureData)]
    if isinstance(end, JobFailureData):
        assert end.failure_reason is RunFailureReason.UNEXPECTED_TERMINATION
    assert not [event for event in told if event.is_hook_event], "nothing has failed, so nobody is alerted"


def test_a_script_that_catches_exceptions_does_not_swallow_an_interrupt() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        with pytest.raises(BaseException, match="This run was told to end") as raised, suppress(Exception):
            as_a_stream_has_it.execute_in_process(instance=instance, tags={"by": "its host"})
        assert raised.type is dg.DagsterExecutionInterruptedError
