"""Checkpoints in HDFS, through Spark's own Hadoop client. PySpark is imported when the class is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.filesystem.hdfs.hdfs import HdfsFileSystem
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["HdfsFileSystem"]
