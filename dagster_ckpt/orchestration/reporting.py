"""What the Dagster UI sees of a job: a materialization per retained checkpoint, partitions, observations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import dagster as dg

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Discarded,
    FellBack,
    Quarantined,
    RequestState,
    SavepointRequest,
    StartTrace,
)
from dagster_ckpt.clock import Clock
from dagster_ckpt.config import format_size
from dagster_ckpt.orchestration.names import partition_key, partition_of, rollback_job
from dagster_ckpt.orchestration.rollback import Launchpad
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = [
    "CheckpointReporter",
    "checkpoint_metadata",
    "request_observation",
    "retained_metadata",
    "savepoint_observation",
    "start_observation",
]

#: Partitions in a table of lags.
_MOST_ROWS = 200
#: Retained checkpoints in the table that each checkpoint's event has; 0.4 kB each in Dagster's database.
_MOST_RETAINED = 50
#: Characters of a source's offset that are shown at most.
_LONGEST_OFFSET = 2000
#: Seconds that one report may take: some hundred events. A sensor's tick has to end, and a run to look after its job.
_LONGEST_REPORT = 10.0

LogEvent: TypeAlias = "Callable[[dg.AssetMaterialization | dg.AssetObservation], object]"


def checkpoint_metadata(metadata: CheckpointMetadata, catalog: CheckpointCatalog) -> dict[str, Any]:
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
        "duration_ms": metadata.duration_ms,
        "align_ms": float(metadata.timings_ms.get("align", 0)),
        "pin_ms": float(metadata.timings_ms.get("pin", 0)),
        "input_rows": numbers.get("input_rows"),
        "state_rows": numbers.get("state_rows"),
        "state_memory_bytes": numbers.get("state_memory_bytes"),
        "rows_dropped_by_watermark": numbers.get("rows_dropped_by_watermark"),
        "rows_per_second": numbers.get("rows_per_second"),
        "batch_ms": numbers.get("batch_ms"),
        **_operators(metadata),
        **_sources(metadata),
        "written_at": dg.MetadataValue.timestamp(datetime.fromisoformat(metadata.written_at)),
        "restored_from": in_one_line(metadata.restored_from or "nothing"),
    }
    if watermark is not None and watermark > 0:
        found["watermark"] = dg.MetadataValue.timestamp(watermark / 1000)
        if (planned_at := metadata.facts.timestamp_ms) is not None:
            found["watermark_lag_seconds"] = (planned_at - watermark) / 1000
    if lag := _lag(metadata):
        found["lag"] = sum(behind for *_, behind in lag)
        found["lag_by_partition"] = _lag_table(lag)
    return {key: value for key, value in found.items() if value is not None}


def _operators(metadata: CheckpointMetadata) -> dict[str, Any]:
    """The stateful operators as a table, and a number for each plot; ``None`` where it is not known."""
    plots: dict[str, Any] = {}
    records = []
    for item in metadata.facts.operators:
        id_ = in_one_line(item.id)
        numbers = {
            "keys": metadata.facts.progress.get(f"operator_{item.id}_keys"),
            "bytes": sum(file.size for file in metadata.files if file.path.startswith(f"checkpoint/state/{item.id}/")),
            "partitions": item.partitions,
        }
        plots |= {f"operator_{id_}_{name}": number for name, number in numbers.items()}
        told = {name: "" if number is None else in_one_line(str(number)) for name, number in numbers.items()}
        records.append(dg.TableRecord({"operator": id_, "name": in_one_line(item.name), **told}))
    return {"operators": dg.MetadataValue.table(records), **plots} if records else {}


def _sources(metadata: CheckpointMetadata) -> dict[str, Any]:
    """The offsets of each source as text, and as numbers for plots where they are numbers; the lag of each."""
    found: dict[str, Any] = {}
    for item in metadata.facts.sources:
        id_ = in_one_line(item.id)
        found[f"source_{id_}"] = in_one_line(redacted(json.dumps(item.offset)))[:_LONGEST_OFFSET]
        found[f"source_{id_}_offset"] = _position(item.offset)
        if item.lag:
            found[f"source_{id_}_lag"] = sum(sum(partitions.values()) for partitions in item.lag.values())
    return found


def _position(offset: Any) -> int | None:
    """An offset as one number that rises: the sum of all numbers in it, ``None`` without any."""
    match offset:
        case bool():
            return None
        case int():
            return offset
        case dict():
            numbers = [number for value in offset.values() if (number := _position(value)) is not None]
            return sum(numbers) if numbers else None
    return None


def _lag(metadata: CheckpointMetadata) -> list[tuple[str, str, int, int, int]]:
    """Source, topic, partition, offset and lag of each partition of Kafka that the brokers told of."""
    return [
        (in_one_line(source.id), in_one_line(topic), int(partition), source.reached(topic, partition), behind)
        for source in metadata.facts.sources
        for topic, partitions in source.lag.items()
        for partition, behind in sorted(partitions.items(), key=lambda item: int(item[0]))
    ]


def _lag_table(lag: Sequence[tuple[str, str, int, int, int]]) -> dg.TableMetadataValue:
    names = {"source": "string", "topic": "string", "partition": "int", "offset": "int", "lag": "int"}
    columns = [dg.TableColumn(name, kind) for name, kind in names.items()]
    records = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in lag[:_MOST_ROWS]]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


def start_observation(asset_key: dg.AssetKey, trace: StartTrace) -> dg.AssetObservation:
    """Where the seconds of a start went; the UI plots the numbers from start to start."""
    steps = {f"start_{name.replace(' ', '_')}_seconds": round(took, 3) for name, took in trace.by_name.items()}
    what = "committed its first batch" if trace.committed else "ended without a batch"
    return dg.AssetObservation(
        asset_key,
        description=f"The start of epoch {trace.epoch} {what} after {trace.seconds:.1f} s",
        metadata={"start_seconds": round(trace.seconds, 3), "epoch": trace.epoch, **steps},
    )


def request_observation(
    asset_key: dg.AssetKey, request: SavepointRequest, state: RequestState, reason: str
) -> dg.AssetObservation:
    """A savepoint that is asked for: the job has taken the request up, or no savepoint was taken."""
    reason = in_one_line(redacted(reason))
    label = {"name": request.name, "note": in_one_line(request.note), "series": request.series, "reason": reason}
    name = f"Savepoint {request.name}" if request.name else "A savepoint"
    return dg.AssetObservation(
        asset_key,
        description=f"{name}: {state}{reason and f', {reason}'}",
        metadata={"state": state.value, **{key: value for key, value in label.items() if value}},
    )


def savepoint_observation(asset_key: dg.AssetKey, metadata: CheckpointMetadata) -> dg.AssetObservation:
    """A savepoint that the job has completed, whoever asked for it."""
    note = in_one_line(metadata.note)
    label = {"name": metadata.given_name, "note": note}
    name = f"Savepoint {metadata.given_name}" if metadata.given_name else "A savepoint"
    return dg.AssetObservation(
        asset_key,
        description=f"{name}: {RequestState.COMPLETED}, batch {metadata.batch}{note and f'. {note}'}",
        metadata={
            "state": RequestState.COMPLETED.value,
            **{key: value for key, value in label.items() if value},
            "pointer": dg.MetadataValue.path(metadata.reference),
            "batch": metadata.batch,
        },
    )


def retained_metadata(retained: Sequence[CheckpointMetadata]) -> dict[str, Any]:
    """What the materialization of a checkpoint tells of all retained ones; the table has the newest first."""
    columns = [
        dg.TableColumn("checkpoint", "string"),
        dg.TableColumn("batch", "int"),
        dg.TableColumn("kind", "string"),
        dg.TableColumn("bytes", "string"),
        dg.TableColumn("new_bytes", "string"),
        dg.TableColumn("written_at", "string"),
    ]
    records = [
        dg.TableRecord(
            {
                "checkpoint": item.name,
                "batch": item.batch,
                "kind": in_one_line(item.kind),
                "bytes": format_size(item.size),
                "new_bytes": format_size(item.new_bytes),
                "written_at": f"{item.written_at[:19]}Z",
            }
        )
        for item in reversed(retained[-_MOST_RETAINED:])
    ]
    return {
        "retained": dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns)),
        "retained_checkpoints": len(retained),
        "retained_bytes": _stored_bytes(retained),
    }


class CheckpointReporter:
    """Reports a job's checkpoints while its run lives.

    A report is made at most every ``interval`` seconds, and always at the end. It makes the partitions equal to the
    retained checkpoints, and materializes each new partition. A partition is added after its materialization, so an
    existing partition proves that its checkpoint was reported: whatever kills or interrupts a report, the next report
    does the rest, and the rest of a report that would take too long. Once a newer run has taken over the job, this run
    reports nothing: the newer run reports what is retained.

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
        self._epoch = 0
        self.is_told = True  # whether nothing is pending
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
        wanted = {partition_key(item): item for item in retained}
        present = set(self._instance.get_dynamic_partitions(self._partitions))
        # Report deletions first, so that the asset's latest event is its newest checkpoint.
        # A partition changes after Dagster has accepted its event: the next report repeats a refused event.
        gone = sorted(present - wanted.keys())
        at_end = self._why_deleted_at_end() if gone else None
        for key in gone:
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
        new = {key: item for key, item in wanted.items() if key not in present}
        newest = next(reversed(new), None)
        for key, item in new.items():
            # The table of all is large: of several that are told of at once, only the newest has it.
            beside = retained_metadata(retained) if key == newest else {}
            self._log_event(
                dg.AssetMaterialization(
                    self._asset_key,
                    partition=key,
                    description=f"{item.name} at batch {item.batch}, {format_size(item.size)}. To go back to it, "
                    f"launch {rollback_job(self.catalog.job_name)} with to: {key}",
                    metadata={**self._metadata(item), **beside, **self._fell_back},
                )
            )
            self._instance.add_dynamic_partitions(self._partitions, [key])
            if key != newest and self._clock.monotonic() > give_up:
                return False
        return True

    def _why_deleted_at_end(self) -> str | None:
        """The reason that an earlier report of this end gave, which it had no time to give for all."""
        epochs = self.catalog.records.epochs
        end = epochs.read_end(epochs.highest())
        if end is None or not end.discarded:
            return None
        return f"{end.status}: {end.reason}, and the cleanup policy deletes"

    def _why_gone(self, key: str, retained: Sequence[CheckpointMetadata]) -> str:
        """Why a checkpoint without a reason of its own is not shown any more."""
        if not retained or key.partition(".")[0] in {item.job_id[:8] for item in retained}:
            return "it is not among the retained checkpoints of this lineage"
        return (
            f"the job goes on in another lineage. `dagster-ckpt list {self.catalog.job_name}` shows whether it is "
            "still in the storage; then restore_from takes {job id}/chk-N"
        )

    def _metadata(self, item: CheckpointMetadata) -> dict[str, Any]:
        pad = self._launchpad
        ways = {} if pad is None else {"ways_back": pad.ways_back(item.reference, item.name)}
        return {**ways, **checkpoint_metadata(item, self.catalog)}


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
