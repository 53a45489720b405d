"""The old import path of :mod:`dagster_ckpt.datastream.storage_access`."""

from dagster_ckpt.moved_names import moved_names

__getattr__ = moved_names(__name__, "dagster_ckpt.datastream.storage_access")
