"""The old import path of :mod:`dagster_ckpt.testing.gcs.server`."""

import runpy

from dagster_ckpt.moved_names import moved_names

__getattr__ = moved_names(__name__, "dagster_ckpt.testing.gcs.server")

if __name__ == "__main__":
    runpy.run_module("dagster_ckpt.testing.gcs.server", run_name="__main__")
