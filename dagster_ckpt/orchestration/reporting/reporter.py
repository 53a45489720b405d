"""What the Dagster UI sees of a job's checkpoints: a materialization and a partition each, and why one is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, Discarded, FellBack, Quarantined
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import format_size
from dagster_ckpt.orchestration.names import partition_key, partition_of, rollback_job
from dagster_ckpt.orchestration.reporting.left_lineages import LeftLineages
from dagster_ckpt.orchestration.reporting.metadata import checkpoint_metadata, retained_metadata
from dagster_ckpt.orchestration.rollback import Launchpad
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["CheckpointReporter"]

#: Seconds that one report may take: some hundred events. A sensor's tick has to end, and a run to look after its job.
_LONGEST_REPORT = 10.0
#: Partitions that Dagster is asked for in one query.
_AT_ONCE = 1000

LogEvent: TypeAlias = "Callable[[dg.AssetMaterialization | dg.AssetObservation], object]"


class CheckpointReporter:
    """Reports a job's checkpoints while its run lives.

    A report is made at most every ``interval`` seconds, and always at the end. It makes the partitions equal to the
    checkpoints that the job can go back to: the retained ones of its lineage, and those of lineages that it has left.
    Each new partition is materialized. A partition is added after its materialization, so an existing partition proves
    that its checkpoint was reported: whatever kills or interrupts a report, the next report does the rest, and the rest
    of a report that would take too long. When a run is deleted or the asset is wiped, materializations go and their
    partitions stay: the first report of a start materializes these again. Once a newer run has taken over the job, this
    run reports nothing: the newer run reports what is retained.

    Args:
        instance: the Dagster instance.
        log_event: where events go: a run's ``context.log_event`` or the instance's runless one.
        asset_key: of ``<job>_checkpoints``.
        partitions: name of the asset's dynamic partitions.
        catalog: the job's checkpoints.
        clock: monotonic time.
        interval: seconds.
        launchpad: for the links that take the job back to a checkpoint, ``None`` where no UI is known.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        log_event: LogEvent,
        asset_key: dg.AssetKey,
        partitions: str,
        catalog: CheckpointCatalog,
        clock: Clock,
        interval: float,
        launchpad: Launchpad | None = None,
    ) -> None:
        self._launchpad = launchpad
        self._instance = instance
        self._log_event = log_event
        self._asset_key = asset_key
        self._partitions = partitions
        self.catalog = catalog
        self._clock = clock
        self._interval = interval
        self._reported_at = float("-inf")
        self._reasons: dict[str, str] = {}
        self._retained: Sequence[CheckpointMetadata] | None = None
        self._left = LeftLineages(catalog, clock)
        #: Partitions without a materialization; ``None`` to look for them.
        self._untold: set[str] | None = None
        self._epoch = 0
        self.is_told = True  # whether nothing is pending
        self._fell_back: Mapping[str, str | int] = {}

    def holds(self, epoch: int) -> None:
        """The reporting run holds the job under this epoch from now on."""
        self._epoch = epoch

    def began(self, retained: Sequence[CheckpointMetadata]) -> None:
        """A run began with these checkpoints; checkpoints that are new to the UI are reported too."""
        self._left.chosen_again()
        self._untold = None
        self._now(retained)
        self.flush()

    def tick(self) -> None:
        """Report what is pending, or what an earlier report failed to report, once ``interval`` has passed."""
        if not self.is_told and self._clock.monotonic() - self._reported_at >= self._interval:
            self.flush()

    def fell_back(self, fell_back: FellBack) -> None:
        """The run continues from an older checkpoint; every checkpoint that it reports says so."""
        told = in_one_line(redacted(str(fell_back)))
        costs: dict[str, str | int | None] = {
            "fell_back": told,
            "batches_run_again": fell_back.batches,
            "files_run_again": fell_back.files,
            "rows_run_again": fell_back.rows,
        }
        self._fell_back = {key: value for key, value in costs.items() if value is not None}
        self._log_event(dg.AssetObservation(self._asset_key, description=told, metadata=self._fell_back))

    def quarantined(self, record: Quarantined) -> None:
        """A checkpoint was put into quarantine: the next report removes its partition."""
        job_id, _, name = record.checkpoint.partition("/")
        self._reasons[partition_of(job_id, name)] = f"it is in quarantine: {record.reason}"

    def completed(self, retained: Sequence[CheckpointMetadata]) -> None:
        """A checkpoint completed, the newest of ``retained``."""
        self._now(retained)
        self.tick()

    def subsumed(self, discarded: Sequence[Discarded], retained: Sequence[CheckpointMetadata]) -> None:
        """Checkpoints that newer ones replace were deleted; ``retained`` stay."""
        self._reasons.update({partition_key(item.metadata): item.reason for item in discarded})
        self._now(retained)
        self.tick()

    def discarded(self, discarded: Sequence[Discarded], retained: Sequence[CheckpointMetadata]) -> None:
        """The job is over, and some checkpoints were discarded; ``retained`` stay."""
        self._reasons.update({partition_key(item.metadata): item.reason for item in discarded})
        self._left.chosen_again()
        self._now(retained)
        self.flush()

    def flush(self) -> None:
        """Report now what is pending, as far as one report goes."""
        if self._retained is None:
            return
        self._reported_at = self._clock.monotonic()
        is_taken_over = self.catalog.records.epochs.highest() > self._epoch
        self.is_told = is_taken_over or self._report(self._retained)

    def _now(self, retained: Sequence[CheckpointMetadata]) -> None:
        self._retained = retained
        self.is_told = False

    def _report(self, retained: Sequence[CheckpointMetadata]) -> bool:
        """Whether all is reported; ``False`` when the time is over."""
        give_up = self._clock.monotonic() + _LONGEST_REPORT
        left = self._left.restorable()
        # Those of the job's own lineage come last, so that the asset's latest event is its newest checkpoint.
        wanted = {partition_key(item): item for item in [*(left or ()), *retained]}
        present = set(self._instance.get_dynamic_partitions(self._partitions))
        if self._untold is None:
            self._untold = self._without_materialization(present)
            if self._untold and retained:
                # Else the asset's latest event would be one of an older checkpoint.
                self._untold.add(partition_key(retained[-1]))
        gone = present - wanted.keys()
        if left is None:
            gone = {key for key in gone if self._is_own(key, retained)}
        # Report deletions first, for the same reason.
        # A partition changes after Dagster has accepted its event: the next report repeats a refused event.
        at_end = self._why_deleted_at_end() if gone else None
        for key in sorted(gone):
            reason = self._reasons.get(key) or at_end or self._why_gone(key, retained)
            reason = in_one_line(redacted(reason))
            self._log_event(
                dg.AssetObservation(
                    self._asset_key,
                    partition=key,
                    description=f"{key} is gone: {reason}",
                    metadata={"reason": reason},
                )
            )
            self._instance.delete_dynamic_partition(self._partitions, key)
            if self._clock.monotonic() > give_up:
                return False
        # A checkpoint that came and went between two reports is not reported, so its reason goes, too.
        self._reasons = {key: reason for key, reason in self._reasons.items() if key in wanted}
        told = present - self._untold
        new = {key: item for key, item in wanted.items() if key not in told}
        newest = next(reversed(new), None)
        for key, item in new.items():
            # What tells of all is large: of several that are told of at once, only the newest has it.
            beside = retained if key == newest else None
            self._log_event(
                dg.AssetMaterialization(
                    self._asset_key,
                    partition=key,
                    description=f"{item.name} at batch {item.batch}, {format_size(item.size)}. To go back to it, "
                    f"launch {rollback_job(self.catalog.job_name)} with to: {key}",
                    metadata={**self._metadata(item, beside), **self._fell_back},
                )
            )
            self._instance.add_dynamic_partitions(self._partitions, [key])
            self._untold.discard(key)
            if key != newest and self._clock.monotonic() > give_up:
                return False
        return True

    def _without_materialization(self, present: set[str]) -> set[str]:
        """Those of the partitions that Dagster has no materialization of; an old stream has had millions of others."""
        event, keys, told = dg.DagsterEventType.ASSET_MATERIALIZATION, list(present), set[str]()
        for at in range(0, len(keys), _AT_ONCE):
            asked = set(keys[at : at + _AT_ONCE])
            told.update(self._instance.get_latest_storage_id_by_partition(self._asset_key, event, partitions=asked))
        return present - told

    def _why_deleted_at_end(self) -> str | None:
        """The reason that an earlier report of this end gave, which it had no time to give for all."""
        epochs = self.catalog.records.epochs
        end = epochs.read_end(epochs.highest())
        if end is None or not end.discarded:
            return None
        return f"{end.status}: {end.reason}, and the cleanup policy deletes"

    def _is_own(self, key: str, retained: Sequence[CheckpointMetadata]) -> bool:
        """Whether a partition is of the lineage that the job is in, as far as this reporter knows."""
        return key in self._reasons or key.partition(".")[0] in {item.job_id[:8] for item in retained}

    def _why_gone(self, key: str, retained: Sequence[CheckpointMetadata]) -> str:
        """Why a checkpoint without a reason of its own is not shown any more."""
        if self._is_own(key, retained):
            return "it is not among the retained checkpoints of this lineage"
        return (
            "it is no longer in the storage, or cannot be read. `dagster-ckpt list "
            f"{self.catalog.job_name} {self.catalog.filesystem.path_option}` shows what is there"
        )

    def _metadata(self, item: CheckpointMetadata, beside: Sequence[CheckpointMetadata] | None) -> dict[str, Any]:
        """What is told of a checkpoint, and, with it, of those retained ``beside`` it."""
        told, all_of_them = checkpoint_metadata(item, self.catalog), {} if beside is None else retained_metadata(beside)
        if (pad := self._launchpad) is None:
            return {**told, **all_of_them}
        ways = {"ways_back": pad.ways_back(item.reference, item.name)}
        if beside:
            ways["go_back_to"] = pad.newest_first(beside)
        return {**ways, **told, **all_of_them}
