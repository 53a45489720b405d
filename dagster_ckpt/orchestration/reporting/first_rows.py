"""A stream counts as materialized from its first checkpoint on, although its run goes on for months."""

from __future__ import annotations

import logging

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.spark import CheckpointCompleted, Event, Started

__all__ = ["FirstRows"]

_log = logging.getLogger(__name__)


class FirstRows:
    """Has Dagster know that the rows of a stream are there, once, and not as the work of the run that goes on.

    Dagster counts an asset as in progress until the run that is to materialize it has done so. An event without a run
    leaves it in progress: its page shows the run, and ``AutomationCondition.eager()`` launches no second one.

    What depends on a bounded query (``availableNow``) must not begin on half of its rows, and a freshness policy of the
    stream would begin with the event and turn red: then there is no event.

    Args:
        instance: the Dagster instance.
        spec: of the stream.
        key: of the stream in this run.
    """

    def __init__(self, instance: dg.DagsterInstance, spec: dg.AssetSpec, key: dg.AssetKey) -> None:
        self._instance, self._key = instance, key
        self._is_wanted = spec.freshness_policy is None
        self._is_due = False

    def happened(self, event: Event) -> None:
        """Take an event of the run; no error leaves this method, because the run does not depend on it."""
        if isinstance(event, Started):
            self.began(is_bounded=event.is_bounded)
        elif isinstance(event, CheckpointCompleted):
            self.completed(event.metadata)

    def began(self, *, is_bounded: bool | None) -> None:
        """The query has begun; ``is_bounded`` is ``None`` where nobody can tell."""
        self._is_due = self._is_wanted and is_bounded is False

    def completed(self, first: CheckpointMetadata) -> None:
        """A checkpoint of the query is there; no error leaves this method."""
        if self._is_due:
            self._is_due = False
            try:
                self._tell(first)
            except Exception as error:
                _log.warning("%s still counts as never materialized: %s", self._key.to_user_string(), error)

    def _tell(self, first: CheckpointMetadata) -> None:
        if self._instance.get_latest_materialization_event(self._key) is not None:
            return
        self._instance.report_runless_asset_event(
            dg.AssetMaterialization(
                self._key,
                description="The rows of the first checkpoint are there, and the run goes on. The run itself "
                "materializes the asset when it ends in success.",
                metadata={"batch": first.batch, "checkpoint": first.reference, "lineage": first.job_id},
            )
        )
