from __future__ import annotations

import pytest

from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing.filesystem_contract import FileSystemContract
from tests.gcs import BucketServer, bucket_of


class TestGcs(FileSystemContract):
    @pytest.fixture
    def storage(self, any_server: BucketServer) -> FileSystem:
        return bucket_of(any_server)


class TestGcsWithoutPrefix(FileSystemContract):
    @pytest.fixture
    def storage(self, any_server: BucketServer) -> FileSystem:
        return bucket_of(any_server, "")
