"""What a run's process makes of what Dagster says of the run."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_ckpt.orchestration.streaming_run import OwnRun
from tests.helpers.checkpoint.driver import ManualClock
from tests.helpers.orchestration.stored_job import run_id

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
