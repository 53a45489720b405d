"""Whether the input after a checkpoint still exists where nobody keeps the plans of its batches any more.

The archive forgets the plans of batches that every retained checkpoint covers, and a savepoint may be older. But the
logs of file sources forget nothing: those in the newest checkpoint list every file that was ever read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    PlannedBatch,
    Source,
    find_newest,
    materialize_checkpoint,
)
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import scratch_directory
from dagster_ckpt.spark.files import LOG_VERSION, CheckpointLocation, log_id
from dagster_ckpt.spark.live import LOCATION
from dagster_ckpt.spark.preflight.source_files import lost_files_finding
from dagster_ckpt.spark.verdict import Finding
from dagster_ckpt.stored_json import believed, parsed

__all__ = ["later_input_findings"]

_log = logging.getLogger(__name__)


def later_input_findings(
    catalog: CheckpointCatalog, restored: CheckpointMetadata, unpacked: Path, known: Sequence[PlannedBatch]
) -> list[Finding]:
    """A finding if files are gone that batches after a checkpoint have read, of which the plans are not known.

    Args:
        catalog: the checkpoints of the job that took the checkpoint.
        restored: the checkpoint.
        unpacked: the directory of its checkpointLocation.
        known: the plans of the batches after it, in order up to the first that is not known.
    """
    try:
        newest = find_newest(catalog).metadata
        if newest is None or newest.batch <= (known[-1].batch if known else restored.batch):
            return []
        later = _read_since(catalog, newest, CheckpointLocation(unpacked), restored.batch + 1)
    except (CheckpointError, OSError) as error:  # the newest checkpoint is not restored now, so it may be broken
        _log.warning("Which files were read after batch %d is not known: %s", restored.batch, error)
        return []
    finding = lost_files_finding(later, newest.reference)
    return [] if finding is None else [finding]


def _read_since(
    catalog: CheckpointCatalog, newest: CheckpointMetadata, before: CheckpointLocation, batch: int
) -> PlannedBatch:
    """The files in the logs of the newest checkpoint that those of an older one do not have, as one batch."""
    sources = [source.id for source in newest.facts.sources if _is_of_files(source)]
    kept = tuple(file for file in newest.files if file.path.startswith(f"{LOCATION}/sources/"))
    with scratch_directory() as scratch:
        target = scratch / "files"
        materialize_checkpoint(catalog, replace(newest, files=kept), target)
        now = CheckpointLocation(target / LOCATION)
        logs = {source: _logged(now, source) for source in sources}
    files = {}
    for source, lines in logs.items():
        earlier = _logged(before, source)
        later = sorted(line for path, line in lines.items() if path not in earlier)
        files[f"sources/{source}/0"] = "\n".join([LOG_VERSION, *later])
    return PlannedBatch(batch, files)


def _is_of_files(source: Source) -> bool:
    return isinstance(source.offset, dict) and source.offset.keys() == {"logOffset"}


def _logged(location: CheckpointLocation, source: str) -> dict[str, str]:
    """The lines of a file source's log, by the file that each names."""
    log = f"sources/{source}"
    with believed(f"{log} in {location.shown}", "Restore another checkpoint."):
        texts = [location.text(f"{log}/{name}") for name in location.names(log) if log_id(name) is not None]
        return {str(parsed(line)["path"]): line for text in texts for line in text.split("\n")[1:] if line}
