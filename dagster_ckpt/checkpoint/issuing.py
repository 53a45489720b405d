"""The ids of checkpoints and savepoints: rising, and never issued twice in a lineage, whoever issues them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.metadata import CheckpointMetadata
from dagster_ckpt.filesystem import FileSystem

if TYPE_CHECKING:
    from dagster_ckpt.checkpoint.catalog import CheckpointCatalog

__all__ = ["issuing_epochs", "next_id", "record_issued"]

_NAME = re.compile(r"e-(\d{10})")


def record_issued(filesystem: FileSystem, job_name: str, job_id: str, epoch: int, number: int) -> None:
    """Remember that ``number`` was issued in this lineage.

    Each epoch has a file of its own, so that a fenced writer cannot lower what a newer one recorded.
    """
    directory = _issued_directory(job_name, job_id)
    filesystem.replace(f"{directory}/e-{epoch:010}", f"{number}\n".encode())
    filesystem.sync_directories([directory])


def issuing_epochs(filesystem: FileSystem, job_name: str, job_id: str) -> frozenset[int]:
    """The epochs that have issued an id in this lineage: no other has a checkpoint in it. One listing."""
    entries = filesystem.list(_issued_directory(job_name, job_id))
    return frozenset(int(match[1]) for entry in entries if (match := _NAME.fullmatch(entry.name)))


def next_id(catalog: CheckpointCatalog, job_id: str, restored: CheckpointMetadata | None = None) -> int:
    """The id after the highest ever issued in a lineage, after every ``chk-N`` there and after ``restored``."""
    directory = _issued_directory(catalog.job_name, job_id)
    issued = [
        int(catalog.filesystem.read(f"{directory}/{entry.name}"))
        for entry in catalog.filesystem.list(directory)
        if _NAME.fullmatch(entry.name)
    ]
    return max([0, *issued, *catalog.numbers(job_id), restored.checkpoint_id if restored else 0]) + 1


def _issued_directory(job_name: str, job_id: str) -> str:
    """Where the ids issued in a lineage are recorded, one file per epoch."""
    return f"{job_name}/{CONTROL_DIR}/issued/{job_id}"
