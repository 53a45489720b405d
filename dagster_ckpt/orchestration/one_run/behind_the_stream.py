"""A stream and its savepoint in one run: the savepoint is taken when the stream's step is over."""

from __future__ import annotations

import time

import dagster as dg

__all__ = ["BEHIND", "wait_for_stream"]

#: Tags of an op: an executor that has one step at a time takes the stream's step first.
BEHIND = {"dagster/priority": "-1"}
_ENDS = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_SKIPPED}
_POLL_SECONDS = 2.0


def wait_for_stream(context: dg.AssetExecutionContext, stream: dg.AssetKey, step: str) -> None:
    """Wait until the stream's step is over, if this run has that step; Dagster orders only what depends on it.

    Args:
        context: of the step that waits.
        stream: the key of the stream.
        step: the name of the stream's op.

    Raises:
        Failure: the stream's step has not ended in success.
    """
    steps = context.run.step_keys_to_execute
    if stream not in context.job_def.asset_layer.selected_asset_keys or (steps is not None and step not in steps):
        return
    context.log.info(f"This run also materializes {stream.to_user_string()}: the savepoint is taken after it.")
    while True:
        found = context.instance.get_records_for_run(context.run.run_id, of_type=_ENDS).records
        ends = [end.event_log_entry.dagster_event for end in found if end.event_log_entry.step_key == step]
        if ends:
            break
        time.sleep(_POLL_SECONDS)
    if not any(end is not None and end.is_step_success for end in ends):
        raise dg.Failure(
            f"{stream.to_user_string()} has failed in this run, so no savepoint is taken. Materialize the savepoints "
            "alone to take one of the newest completed checkpoint."
        )
