"""Names and places in the storage: Flink's layout, below one directory per job name.

::

    {checkpoint_path}/{job name}/
        {job-id}/chk-{N}/_metadata      the manifest and completion marker
        {job-id}/shared/                immutable files that checkpoints share
        taskowned/                      Spark's live locations, {epoch}-{token}/checkpoint, if they are in the storage
        control/                        owner, epochs, issued, heartbeat, silent, failures, deletions, pins, quarantine,
                                        requests, savepoints, starts, standbys, submissions, messages, attendant, wal,
                                        reserve
    {savepoint_path}/savepoint-{6 hex of the job id}-{12 random hex}/
        _metadata, and every file of the savepoint that is not inside it
"""

from __future__ import annotations

import re

from dagster_ckpt.errors import InvalidConfiguration

__all__ = [
    "CHECKPOINT_DIR_PREFIX",
    "CHECKPOINT_SHARED_STATE_DIR",
    "CHECKPOINT_TASK_OWNED_STATE_DIR",
    "CONTROL_DIR",
    "METADATA_FILE_NAME",
    "SAVEPOINT_DIR_PREFIX",
    "checkpoint_directory",
    "checkpoint_id",
    "is_job_id",
    "is_job_name",
    "shared_directory",
    "validate_job_name",
]

CHECKPOINT_DIR_PREFIX = "chk-"
CHECKPOINT_SHARED_STATE_DIR = "shared"
CHECKPOINT_TASK_OWNED_STATE_DIR = "taskowned"
METADATA_FILE_NAME = "_metadata"
CONTROL_DIR = "control"
SAVEPOINT_DIR_PREFIX = "savepoint-"

_JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_JOB_ID = re.compile(r"[0-9a-f]{32}")
_CHECKPOINT = re.compile(r"chk-([1-9][0-9]{0,14})")


def is_job_name(name: str) -> bool:
    """Whether a job can have this name: a directory name on every storage."""
    return _JOB_NAME.fullmatch(name) is not None and name != CONTROL_DIR


def validate_job_name(name: str) -> str:
    """Return ``name`` if a job can have it.

    Raises:
        InvalidConfiguration: no job can have this name.
    """
    if not is_job_name(name):
        raise InvalidConfiguration(
            f"{name!r} cannot be a job name: the name becomes a directory.",
            hint="Use letters, digits, '_', '-' and '.', beginning with a letter, a digit or '_'.",
        )
    return name


def is_job_id(name: str) -> bool:
    """Whether a directory name is a job id: 32 hex digits."""
    return _JOB_ID.fullmatch(name) is not None


def checkpoint_directory(job_name: str, job_id: str, number: int) -> str:
    """``{job name}/{job id}/chk-{number}``."""
    return f"{job_name}/{job_id}/{CHECKPOINT_DIR_PREFIX}{number}"


def shared_directory(job_name: str, job_id: str) -> str:
    """``{job name}/{job id}/shared``."""
    return f"{job_name}/{job_id}/{CHECKPOINT_SHARED_STATE_DIR}"


def reserve_path(job_name: str) -> str:
    """The file that sets space aside for the records of deletions."""
    return f"{job_name}/{CONTROL_DIR}/reserve"


def checkpoint_id(directory_name: str) -> int | None:
    """The number in ``chk-{number}``, ``None`` for any other name."""
    match = _CHECKPOINT.fullmatch(directory_name)
    return int(match[1]) if match else None
