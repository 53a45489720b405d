"""What the Dagster UI sees of a checkpoint, of all that are retained, and of a start: text, tables, numbers to plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata, StartTrace
from dagster_ckpt.config import format_size
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["checkpoint_metadata", "retained_metadata", "start_observation"]

#: Partitions in a table of lags.
_MOST_ROWS = 200
#: Retained checkpoints in the table that each checkpoint's event has; 0.4 kB each in Dagster's database.
_MOST_RETAINED = 50
#: Characters of a source's offset that are shown at most.
_LONGEST_OFFSET = 2000


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
        "size": format_size(metadata.size),
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
    """The offsets of each source as text, and as numbers for plots where they are numbers; the lag of each.

    A sum does not tell whether one partition alone is behind, so there is a plot of the partition with the most, too.
    """
    found: dict[str, Any] = {}
    for item in metadata.facts.sources:
        id_ = in_one_line(item.id)
        found[f"source_{id_}"] = in_one_line(redacted(json.dumps(item.offset)))[:_LONGEST_OFFSET]
        found[f"source_{id_}_offset"] = _position(item.offset)
        if item.lag:
            behind = [each for partitions in item.lag.values() for each in partitions.values()]
            found[f"source_{id_}_lag"] = sum(behind)
            found[f"source_{id_}_most_lag"] = max(behind)
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


def retained_metadata(retained: Sequence[CheckpointMetadata]) -> dict[str, Any]:
    """What the materialization of a checkpoint tells of all retained ones; the table has the newest first.

    The UI cuts a wider table off in a window of 1440 pixels. What is left out here is in the event of each checkpoint.
    """
    columns = [
        dg.TableColumn("checkpoint", "string"),
        dg.TableColumn("batch", "int"),
        dg.TableColumn("bytes", "string"),
        dg.TableColumn("written_at", "string"),
    ]
    records = [
        dg.TableRecord(
            {
                "checkpoint": item.name,
                "batch": item.batch,
                "bytes": format_size(item.size),
                "written_at": f"{item.written_at[5:19].replace('T', ' ')}Z",
            }
        )
        for item in reversed(retained[-_MOST_RETAINED:])
    ]
    return {
        "retained": dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns)),
        "retained_checkpoints": len(retained),
        "retained_bytes": _stored_bytes(retained),
    }


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
