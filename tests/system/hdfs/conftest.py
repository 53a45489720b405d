from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from dagster_ckpt.filesystem import HdfsFileSystem
from tests.servers.hdfs_cluster import MiniDfs, cluster_jvm

#: A NameNode that is not there is asked twice and not ten times.
IMPATIENT = {"ipc.client.connect.max.retries": "1", "ipc.client.connect.retry.interval": "100"}


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with cluster_jvm(tmp_path_factory.mktemp("jvm")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(jvm: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniDfs]:
    running = MiniDfs(jvm, tmp_path_factory.mktemp("hdfs"))
    yield running
    running.close()


@pytest.fixture
def directory() -> str:
    """A new one for each test; it has a space in it."""
    return f"/open/{uuid.uuid4().hex} of all"


@pytest.fixture
def storage(cluster: MiniDfs, directory: str) -> HdfsFileSystem:
    return HdfsFileSystem(cluster.authority(), directory, IMPATIENT)
