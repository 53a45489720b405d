"""Writing other offsets into a restored copy, and publishing the copy as a checkpoint of its own.

Spark begins batch N+1 where ``offsets/N`` ends, and does not look at what batch N has read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from dagster_ckpt.checkpoint import MOVED, CheckpointMetadata
from dagster_ckpt.errors import CorruptCheckpoint
from dagster_ckpt.spark.changed_copy import RestoredCopy
from dagster_ckpt.spark.files import OffsetEntry, parse_offsets
from dagster_ckpt.spark.kafka import KafkaInputs
from dagster_ckpt.spark.moved_sources.places import Offsets

__all__ = ["move_sources"]

#: The version and the metadata of the batch.
_HEAD = 2


def move_sources(
    copy: RestoredCopy, offsets: Mapping[str, Offsets], asked: str, inputs: KafkaInputs
) -> CheckpointMetadata:
    """Write where sources start into a restored copy, and publish the copy.

    Args:
        copy: the restored copy.
        offsets: all offsets of each source that starts elsewhere.
        asked: the request, as :attr:`~dagster_ckpt.config.RestoreRequest.move` tells it.
        inputs: the Kafka sources of the query.

    Raises:
        CorruptCheckpoint: the manifest tells other offsets than Spark's file, so what was counted is not what is done.
        TopicRecreated: a topic was deleted and created again since the checks.
        Fenced: a newer run has taken the job over.
        StorageError: the storage failed.
    """
    batch = copy.restored.batch
    with copy.live.edited() as location:
        entry = location / "offsets" / str(batch)
        text = entry.read_text(encoding="utf-8")
        check_facts(copy.restored, parse_offsets(text, f"offsets/{batch}"), offsets)
        temporary = entry.with_name(f".{entry.name}.moved.tmp")
        temporary.write_text(with_offsets(text, offsets), encoding="utf-8")
        entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)  # it describes other bytes
        temporary.replace(entry)
    return copy.publish(batch, MOVED, inputs.observed, start_sources=asked)


def check_facts(restored: CheckpointMetadata, entry: OffsetEntry, moved: Collection[str]) -> None:
    """Make sure that the manifest tells the offsets of the moved sources that Spark's own file has.

    Raises:
        CorruptCheckpoint: it tells others.
    """
    for source in restored.facts.sources:
        if source.id in moved and source.offset != entry.offset(source.id):
            raise CorruptCheckpoint(
                f"{restored.name} tells another offset of source {source.id} than its offsets/{restored.batch}.",
                hint="Restore another checkpoint, or launch without start_sources.",
            )


def with_offsets(text: str, offsets: Mapping[str, Offsets]) -> str:
    """An entry of Spark's offset log with other offsets for some sources."""
    entry, lines = parse_offsets(text, "offsets"), text.split("\n")
    for at, (source, _) in enumerate(entry.sources, start=_HEAD):
        if source in offsets:
            place = json.dumps(offsets[source], separators=(",", ":"))
            lines[at] = place if entry.version == 1 else f"{source}:{place}"
    return "\n".join(lines)
