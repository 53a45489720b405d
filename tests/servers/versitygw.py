"""versitygw: a server of S3's API that other people wrote, as the second opinion on ours.

It keeps objects as files of a directory. What it answers otherwise than Amazon documents is told, line by line, in
``tests/unit/filesystem/buckets/s3/test_s3_answers.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import botocore.session
from botocore.config import Config

from tests.servers.go_server import serving
from tests.servers.programs import versitygw
from tests.servers.s3 import KEY, SECRET

__all__ = ["VersityServer", "running"]


class VersityServer:
    """A running server, asked and changed through its own API.

    Args:
        url: where it is.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )

    def empty(self) -> None:
        """Remove all buckets."""
        for bucket in self._client.list_buckets()["Buckets"]:
            names = [{"Key": name} for name in self._names(bucket["Name"])]
            for first in range(0, len(names), 1000):
                self._client.delete_objects(Bucket=bucket["Name"], Delete={"Objects": names[first : first + 1000]})
            self._client.delete_bucket(Bucket=bucket["Name"])

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self._client.create_bucket(Bucket=name)

    def objects(self, bucket: str) -> dict[str, bytes]:
        """What a bucket holds, by name."""
        return {name: self._client.get_object(Bucket=bucket, Key=name)["Body"].read() for name in self._names(bucket)}

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Store an object behind everybody's back."""
        self._client.put_object(Bucket=bucket, Key=name, Body=data)

    def discard(self, bucket: str, name: str) -> None:
        """Remove an object behind everybody's back."""
        self._client.delete_object(Bucket=bucket, Key=name)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def _names(self, bucket: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]


@contextmanager
def running(home: Path) -> Iterator[VersityServer]:
    """The server on a free port of this machine, without a bucket.

    Args:
        home: a new directory for what it keeps and says.
    """
    objects = home / "objects"
    objects.mkdir(parents=True)
    path = str(versitygw())
    keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}

    def command(port: int) -> list[str]:
        options = ("--port", f"127.0.0.1:{port}", "--health", "/health", "--quiet", "--keep-alive")
        return [path, *options, "posix", str(objects)]

    with serving(command, "/health", home / "log", keys) as url:
        server = VersityServer(url)
        yield server
        server.close()
