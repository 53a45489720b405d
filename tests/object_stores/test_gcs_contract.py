from __future__ import annotations

import pytest

from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing.filesystem_contract import FileSystemContract
from dagster_ckpt.testing.gcs_server import GcsServer
from tests.gcs import bucket_of


class TestGcs(FileSystemContract):
    @pytest.fixture
    def storage(self, server: GcsServer) -> FileSystem:
        return bucket_of(server)


class TestGcsWithoutPrefix(FileSystemContract):
    @pytest.fixture
    def storage(self, server: GcsServer) -> FileSystem:
        return bucket_of(server, "")
