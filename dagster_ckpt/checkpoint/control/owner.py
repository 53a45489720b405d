"""Who owns a job's directory: two deployments must not share one by accident."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.checkpoint.format.layout import CONTROL_DIR
from dagster_ckpt.checkpoint.format.records import Line, encode_record, read_record
from dagster_ckpt.errors import ForeignCheckpoint, PublishConflict
from dagster_ckpt.filesystem import FileSystem

__all__ = ["claim_ownership"]


@dataclass(frozen=True, slots=True)
class _Owner:
    deployment: Line


def claim_ownership(filesystem: FileSystem, job_name: str, deployment: str) -> None:
    """Make ``deployment`` the owner of the job's directory, or find that it is.

    Raises:
        ForeignCheckpoint: another deployment owns it.
    """
    path = f"{job_name}/{CONTROL_DIR}/owner"
    try:
        filesystem.create(path, encode_record(_Owner(deployment), path))
    except PublishConflict:
        owner = read_record(filesystem, path, _Owner)
        if owner is not None and owner.deployment != deployment:
            raise ForeignCheckpoint(
                f"{filesystem.url}/{job_name} belongs to deployment {owner.deployment!r}, and this is {deployment!r}.",
                hint="Give this deployment another checkpoint_path or job name; if it is meant to take the job "
                f"over, set deployment={owner.deployment!r} on its checkpoint storage.",
            ) from None
