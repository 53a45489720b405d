"""The ids of checkpoints and savepoints: rising, and never issued twice in a lineage, whoever issues them.

The name of a record tells the id, so that nothing inside the record can: ``issued/{job id}/e-{epoch}-{id}``. Records of
version 1 are named ``e-{epoch}`` and hold the id.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.format.records import corrupt
from dagster_ckpt.filesystem import FileSystem

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog

__all__ = ["issuing_epochs", "next_id", "record_issued"]

_NAME = re.compile(r"e-([0-9]{10})(?:-([0-9]{15}))?")
#: The last that a name has room for.
_LAST = 10**15 - 1
_VERSION_1 = re.compile(rb"[0-9]{1,15}\n?")


def record_issued(filesystem: FileSystem, job_name: str, job_id: str, epoch: int, number: int) -> None:
    """Remember that ``number`` was issued in this lineage; durable on return.

    Each epoch has records of its own, so that a fenced writer cannot lower what a newer one recorded. Of an epoch the
    newest record is kept.
    """
    directory = _issued_directory(job_name, job_id)
    filesystem.create(f"{directory}/e-{epoch:010}-{number:015}", f"{number}\n".encode())
    filesystem.sync_directories([directory])
    with contextlib.suppress(OSError):  # an older record says less, and does no harm
        filesystem.remove(f"{directory}/e-{epoch:010}-{number - 1:015}")


def issuing_epochs(filesystem: FileSystem, job_name: str, job_id: str) -> frozenset[int]:
    """The epochs that have issued an id in this lineage: no other has a checkpoint in it. One listing."""
    entries = filesystem.list(_issued_directory(job_name, job_id))
    return frozenset(int(match[1]) for entry in entries if (match := _NAME.fullmatch(entry.name)))


def next_id(catalog: CheckpointCatalog, job_id: str, restored: CheckpointMetadata | None = None) -> int:
    """The id after the highest ever issued in a lineage, after every ``chk-N`` there and after ``restored``.

    Raises:
        CorruptRecord: a record of version 1 does not hold an id.
    """
    directory = _issued_directory(catalog.job_name, job_id)
    known = {number: f"{catalog.job_name}/{job_id}/chk-{number}" for number in catalog.numbers(job_id)}
    for entry in catalog.filesystem.list(directory):
        if not entry.is_directory and (match := _NAME.fullmatch(entry.name)) is not None:
            path = f"{directory}/{entry.name}"
            known[int(match[2]) if match[2] else _read_version_1(catalog.filesystem, path)] = path
    greatest = max([0, *known, restored.checkpoint_id if restored else 0])
    if greatest >= _LAST:
        raise corrupt(catalog.filesystem, known.get(greatest, directory), "no job has had that many checkpoints")
    return greatest + 1


def _read_version_1(filesystem: FileSystem, path: str) -> int:
    data = filesystem.read(path)
    if _VERSION_1.fullmatch(data) is None:
        raise corrupt(filesystem, path, "it does not hold the number of a checkpoint")
    return int(data)


def _issued_directory(job_name: str, job_id: str) -> str:
    """Where the ids issued in a lineage are recorded."""
    return f"{job_name}/{CONTROL_DIR}/issued/{job_id}"
