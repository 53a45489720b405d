"""Checkpoints in a bucket, through fsspec. The libraries of a cloud are imported when its class is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.filesystem.buckets.azure import AzureBlobFileSystem, is_entrusted
    from dagster_ckpt.filesystem.buckets.bucket import ObjectFileSystem
    from dagster_ckpt.filesystem.buckets.gcs import GcsFileSystem
    from dagster_ckpt.filesystem.buckets.s3 import S3FileSystem

__all__ = ["AzureBlobFileSystem", "GcsFileSystem", "ObjectFileSystem", "S3FileSystem", "is_entrusted"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AzureBlobFileSystem": f"{__name__}.azure",
        "GcsFileSystem": f"{__name__}.gcs",
        "ObjectFileSystem": f"{__name__}.bucket",
        "S3FileSystem": f"{__name__}.s3",
        "is_entrusted": f"{__name__}.azure",
    },
)
