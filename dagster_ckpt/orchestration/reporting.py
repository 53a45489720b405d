"""What the Dagster UI sees of a job: a materialization per retained checkpoint, partitions, observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, Dropped, FellBack, Quarantined
from dagster_ckpt.clock import Clock
from dagster_ckpt.orchestration.names import partition_key, partition_of
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["CheckpointReporter", "checkpoint_metadata", "retained_table"]

LogEvent: TypeAlias = "Callable[[dg.AssetMaterialization | dg.AssetObservation], object]"


def checkpoint_metadata(
    metadata: CheckpointMetadata, catalog: CheckpointCatalog, retained: Sequence[CheckpointMetadata]
) -> dict[str, Any]:
    """The metadata of one checkpoint's materialization; the UI plots the numbers."""
    numbers, watermark = metadata.facts.progress, metadata.facts.watermark_ms
    found: dict[str, Any] = {
        "pointer": dg.MetadataValue.path(catalog.pointer(metadata)),
        "checkpoint": metadata.name,
        "kind": in_one_line(metadata.kind),
        "checkpoint_id": metadata.checkpoint_id,
        "epoch": metadata.epoch,
        "batch": metadata.batch,
        "files": len(metadata.files),
        "bytes": metadata.size,
        "new_bytes": metadata.new_bytes,
        "duration_ms": round(float(sum(metadata.timings_ms.get(step, 0) for step in ("pin", "write"))), 3),
        "align_ms": float(metadata.timings_ms.get("align", 0)),
        "pin_ms": float(metadata.timings_ms.get("pin", 0)),
        "input_rows": numbers.get("input_rows"),
        "state_rows": numbers.get("state_rows"),
        "rows_dropped_by_watermark": numbers.get("rows_dropped_by_watermark"),
        "written_at": dg.MetadataValue.timestamp(datetime.fromisoformat(metadata.written_at)),
        "restored_from": in_one_line(metadata.restored_from or "nothing"),
        "retained": retained_table(retained),
        "retained_bytes": _stored_bytes(retained),
    }
    if watermark is not None and watermark > 0:
        found["watermark"] = dg.MetadataValue.timestamp(watermark / 1000)
    return {key: value for key, value in found.items() if value is not None}


def retained_table(retained: Sequence[CheckpointMetadata]) -> dg.TableMetadataValue:
    """The retained checkpoints, the newest first."""
    columns = [
        dg.TableColumn("checkpoint", "string"),
        dg.TableColumn("batch", "int"),
        dg.TableColumn("epoch", "int"),
        dg.TableColumn("kind", "string"),
        dg.TableColumn("files", "int"),
        dg.TableColumn("bytes", "int"),
        dg.TableColumn("new_bytes", "int"),
        dg.TableColumn("written_at", "string"),
    ]
    records = [
        dg.TableRecord(
            {
                "checkpoint": item.name,
                "batch": item.batch,
                "epoch": item.epoch,
                "kind": in_one_line(item.kind),
                "files": len(item.files),
                "bytes": item.size,
                "new_bytes": item.new_bytes,
                "written_at": f"{item.written_at[:19]}Z",
            }
        )
        for item in reversed(retained)
    ]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


class CheckpointReporter:
    """Reports a job's checkpoints while its run lives.

    A report is made at most every ``interval`` seconds, and always at the end. It makes the partitions equal to the
    retained checkpoints, and materializes each new partition. A partition is added after its materialization, so an
    existing partition proves that its checkpoint was reported: whatever kills or interrupts a report, the next report
    does the rest. Once a newer run has taken over the job, this run reports nothing: the newer run reports what is
    retained.

    Args:
        instance: the Dagster instance.
        log_event: where events go: a run's ``context.log_event`` or the instance's runless one.
        asset_key: of ``<job>/checkpoints``.
        partitions: name of the asset's dynamic partitions.
        catalog: the job's checkpoints.
        clock: monotonic time.
        interval: seconds.
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
    ) -> None:
        self._instance = instance
        self._log_event = log_event
        self._asset_key = asset_key
        self._partitions = partitions
        self._catalog = catalog
        self._clock = clock
        self._interval = interval
        self._reported_at = float("-inf")
        self._reasons: dict[str, str] = {}
        self._retained: Sequence[CheckpointMetadata] | None = None
        self._epoch = 0
        self._is_told = True
        self._fell_back: Mapping[str, str | int] = {}

    def holds(self, epoch: int) -> None:
        """The reporting run holds the job under this epoch from now on."""
        self._epoch = epoch

    def began(self, retained: Sequence[CheckpointMetadata]) -> None:
        """A run began with these checkpoints; checkpoints that are new to the UI are reported too."""
        self._now(retained)
        self.flush()

    def tick(self) -> None:
        """Report what is pending, or what an earlier report failed to report, once ``interval`` has passed."""
        if not self._is_told and self._clock.monotonic() - self._reported_at >= self._interval:
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

    def completed(self, dropped: Sequence[Dropped], retained: Sequence[CheckpointMetadata]) -> None:
        """A checkpoint completed, the newest of ``retained``, and ``dropped`` were subsumed."""
        self._reasons.update({partition_key(item.metadata): item.reason for item in dropped})
        self._now(retained)
        self.tick()

    def dropped(self, dropped: Sequence[Dropped], retained: Sequence[CheckpointMetadata]) -> None:
        """The job is over, and some checkpoints were discarded; ``retained`` stay."""
        self._reasons.update({partition_key(item.metadata): item.reason for item in dropped})
        self._now(retained)
        self.flush()

    def flush(self) -> None:
        """Report now what is pending."""
        if self._retained is None:
            return
        self._reported_at = self._clock.monotonic()
        if self._catalog.records.epochs.highest() <= self._epoch:
            self._report(self._retained)
        self._is_told = True

    def _now(self, retained: Sequence[CheckpointMetadata]) -> None:
        self._retained = retained
        self._is_told = False

    def _report(self, retained: Sequence[CheckpointMetadata]) -> None:
        wanted = {partition_key(item): item for item in retained}
        present = set(self._instance.get_dynamic_partitions(self._partitions))
        # Report deletions first, so that the asset's latest event is its newest checkpoint.
        # A partition changes after Dagster has accepted its event: the next report repeats a refused event.
        for key in sorted(present - wanted.keys()):
            reason = self._reasons.get(key, "it is not among the retained checkpoints of this lineage")
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
        # A checkpoint that came and went between two reports is not reported, so its reason is dropped too.
        self._reasons = {key: reason for key, reason in self._reasons.items() if key in wanted}
        for key, item in wanted.items():
            if key not in present:
                self._log_event(
                    dg.AssetMaterialization(
                        self._asset_key,
                        partition=key,
                        description=f"{item.name} at batch {item.batch}",
                        metadata=self._metadata(item, retained),
                    )
                )
                self._instance.add_dynamic_partitions(self._partitions, [key])

    def _metadata(self, item: CheckpointMetadata, retained: Sequence[CheckpointMetadata]) -> dict[str, Any]:
        return {**checkpoint_metadata(item, self._catalog, retained), **self._fell_back}


def _stored_bytes(retained: Sequence[CheckpointMetadata]) -> int:
    """Bytes of all retained checkpoints; shared files count once."""
    shared = {
        (file.reference, file.offset): file.size
        for item in retained
        for file in item.files
        if file.reference is not None
    }
    inline = sum(file.size for item in retained for file in item.files if file.reference is None)
    return sum(shared.values()) + inline
