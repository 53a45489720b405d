"""Checkpoints in a bucket, through fsspec. The libraries of a cloud are imported when its class is asked for.

A new cloud is a subclass of :class:`~dagster_ckpt.filesystem.buckets.versioned_bucket.VersionedBucket` with a client
beside it (see ``gcs.py`` and ``gcs_client.py``), a kind in ``filesystem/opening.py``, and its Hadoop connector in
``spark/live/choose.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.filesystem.buckets.azure import AzureBlobFileSystem, is_entrusted
    from dagster_ckpt.filesystem.buckets.bucket import ObjectFileSystem
    from dagster_ckpt.filesystem.buckets.gcs import GcsFileSystem
    from dagster_ckpt.filesystem.buckets.s3 import S3FileSystem
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["AzureBlobFileSystem", "GcsFileSystem", "ObjectFileSystem", "S3FileSystem", "is_entrusted"]
