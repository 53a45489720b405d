"""What a run says while Dagster's database is away: a line ends no run, and hides no error."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from dagster_ckpt.orchestration.events.run_log import say
from dagster_ckpt.orchestration.streaming_run import _last_report


class Away(Exception):
    """What the driver of a database raises."""


def _fail(*_: object) -> Any:
    raise Away("server closed the connection to postgresql://dagster:hunter2@db/dagster")


@pytest.mark.parametrize("managed", [[], ["dagster_ckpt"]], ids=["", "which manages the loggers of Python, too"])
def test_a_line_that_dagster_does_not_take_ends_no_run(caplog: pytest.LogCaptureFixture, managed: list[str]) -> None:

    @dg.op
    def talk(context: dg.OpExecutionContext) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(context.instance.event_log_storage, "store_event", _fail)
            with pytest.raises(Away):
                context.log.warning("so it is in Dagster")
            say(context.log, logging.WARNING, "the line")
            _last_report(cast("dg.AssetExecutionContext", context), cast("Any", SimpleNamespace(flush=_fail)))

    @dg.job
    def talks() -> None:
        talk()

    with dg.DagsterInstance.ephemeral(settings={"python_logs": {"managed_python_loggers": managed}}) as instance:
        assert talks.execute_in_process(instance=instance).success
    said = [line.getMessage() for line in caplog.records if line.name == say.__module__]
    if not managed:  # else Dagster was asked first, for that line, too
        assert "the line" in said
        assert any("last checkpoints could not be reported: server closed" in line for line in said)
    assert not any("hunter2" in line for line in said)
