"""What deleting checkpoints would free: files that several checkpoints share go with the last of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog, references
from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME, checkpoint_directory
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata

__all__ = ["reclaimable_bytes"]


def reclaimable_bytes(
    catalog: CheckpointCatalog, completed: Sequence[CheckpointMetadata], drop: Collection[str]
) -> dict[str, int]:
    """Bytes that deleting the checkpoints named in ``drop`` frees, by checkpoint.

    A file that several of them share counts with the last one in order; one that a checkpoint outside ``drop``
    needs counts nowhere. The sum is what all the deletions free together.

    Args:
        catalog: where they are.
        completed: every completed checkpoint of one lineage, in order.
        drop: references (``{job id}/chk-N``) of those to be deleted.

    Raises:
        StorageError: the storage failed.
    """
    dropped = [metadata for metadata in completed if metadata.reference in drop]
    needed = references([metadata for metadata in completed if metadata.reference not in drop])
    last_user = {reference: metadata for metadata in dropped for reference in metadata.references - needed}
    freed: dict[str, int] = {}
    for metadata in dropped:
        directory = checkpoint_directory(metadata.job_name, metadata.job_id, metadata.checkpoint_id)
        freed[metadata.reference] = catalog.filesystem.size(f"{directory}/{METADATA_FILE_NAME}")
    for reference, metadata in last_user.items():
        freed[metadata.reference] += catalog.filesystem.size(catalog.stored_path(metadata, reference))
    return freed
