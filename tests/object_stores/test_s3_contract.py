from __future__ import annotations

import pytest

from dagster_ckpt.filesystem import FileSystem
from dagster_ckpt.testing.filesystem_contract import FileSystemContract
from tests.s3 import S3Server, bucket_of


class TestS3(FileSystemContract):
    @pytest.fixture
    def storage(self, s3: S3Server) -> FileSystem:
        return bucket_of(s3)


class TestS3WithoutPrefix(FileSystemContract):
    @pytest.fixture
    def storage(self, s3: S3Server) -> FileSystem:
        return bucket_of(s3, "")
