import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dagster_ckpt
from dagster_ckpt import filesystem
from dagster_ckpt.filesystem import buckets, hdfs

# A bare package stands for `dagster_ckpt`, so that only what the storages import is seen.
LOADED = """
import importlib, json, sys, types
package = types.ModuleType("dagster_ckpt")
package.__path__ = [sys.argv[1]]
sys.modules["dagster_ckpt"] = package
importlib.import_module("dagster_ckpt.filesystem")
print(json.dumps(sorted(name.partition(".")[0] for name in sys.modules)))
"""
HEAVY = {"adlfs", "aiohttp", "azure", "botocore", "dagster", "fsspec", "gcsfs", "py4j", "pydantic", "pyspark", "s3fs"}


def test_the_storages_are_imported_without_their_libraries() -> None:
    command = [sys.executable, "-c", LOADED, str(Path(dagster_ckpt.__file__).parent)]
    loaded = set(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert "dagster_ckpt" in loaded
    assert not HEAVY & loaded


@pytest.mark.parametrize("door", [filesystem, buckets, hdfs])
def test_each_name_is_handed_out(door: ModuleType) -> None:
    assert [name for name in door.__all__ if not hasattr(door, name) or name not in dir(door)] == []


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    assert not hasattr(buckets, "FtpFileSystem")
