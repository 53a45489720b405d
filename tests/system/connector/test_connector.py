"""Spark itself in a bucket, by Google's connector: files, a stateful stream, and what our file system sees of them.

Once against our server and once against fake-gcs-server, which can serve all of it. Where its answers are not what
Google documents (``test_answers.py``, ``test_server_side_answers.py``), that makes no difference: nobody else writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.filesystem import GcsFileSystem
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.helpers.driving import driving
from tests.servers.gcs import BucketServer, bucket_of, serving
from tests.servers.gcs_connector import connector_jar
from tests.system.connector.layout import (
    DIRECTORY,
    LARGE,
    OURS,
    OURS_CONTENT,
    TABLE_ROWS,
    expected,
    land,
    large_content,
)

pytestmark = [pytest.mark.exhaustive, pytest.mark.integration, pytest.mark.timeout(2400)]

#: Files of the stream's input before and after the driver is killed.
_BEFORE, _AFTER = 5, 8


@dataclass(frozen=True)
class Told:
    """A server, and what Spark said of it."""

    server: BucketServer
    first: list[dict[str, Any]]
    second: list[dict[str, Any]]

    def of(self, event: str) -> dict[str, Any]:
        """The one event of its name."""
        (said,) = (said for said in [*self.first, *self.second] if said["event"] == event)
        return said

    @property
    def bucket(self) -> GcsFileSystem:
        """As our file system sees it."""
        return bucket_of(self.server, "")


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return connector_jar(tmp_path_factory.mktemp("ivy"))


@pytest.fixture(scope="module", params=[pytest.param("ours", marks=pytest.mark.exhaustive), "fake-gcs-server"])
def server(request: pytest.FixtureRequest) -> Iterator[BucketServer]:
    with serving(request.param, request) as chosen:
        yield chosen


@pytest.fixture(scope="module")
def told(server: BucketServer, jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Two drivers one after the other; the first is killed."""
    landed = tmp_path_factory.mktemp("connector") / "in"
    bucket_of(server, "").create(OURS, OURS_CONTENT.encode())
    land(landed, range(_BEFORE))
    command = (str(jar), server.url, str(landed))
    with driving("tests.system.connector.driver", "begin", *command) as driver:
        driver.await_("two batches", lambda: len(driver.of("Committed")) >= 2)
        driver.kill()
        first = list(driver.said)
    land(landed, range(_BEFORE, _AFTER))
    with driving("tests.system.connector.driver", "finish", *command) as driver:
        assert driver.ended() == "FINISHED"
        return Told(server, first, driver.said)


def test_the_connector_is_googles(told: Told) -> None:
    assert told.of("Class")["name"] == "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"


def test_a_table_is_written_over_and_read(told: Told) -> None:
    table = told.of("Table")
    assert (table["rows"], table["total"]) == (TABLE_ROWS, TABLE_ROWS * (TABLE_ROWS - 1) // 2)


def test_a_file_is_not_created_twice(told: Told) -> None:
    refused = told.of("Refused")
    assert "FileAlreadyExistsException" in refused["error"]
    assert refused["still"] == "first"


def test_a_directory_is_renamed_with_a_file_of_several_parts(told: Told) -> None:
    assert told.of("Renamed") == {"event": "Renamed", "renamed": True, "left": False, "whole": True}
    assert told.of("Deleted") == {"event": "Deleted", "deleted": True, "left": False}


def test_a_stream_that_was_killed_goes_on_exactly(told: Told) -> None:
    assert told.of("Read")["rows"] == expected(_AFTER)
    commits = {entry.name for entry in told.bucket.list("stream/checkpoint/commits") if not entry.is_directory}
    assert {str(batch) for batch in range(_AFTER)} <= commits
    assert {entry.name for entry in told.bucket.list("stream/checkpoint/state/0")} >= {"0", "1"}


def test_our_file_system_and_the_connector_see_the_same(told: Told) -> None:
    assert told.of("Ours")["content"] == OURS_CONTENT
    sizes = told.of("Listed")["sizes"]
    assert sizes[f"{DIRECTORY}/new/{LARGE}"] == len(large_content())
    ours = {name: told.bucket.size(name) for name in _below(told.bucket, DIRECTORY)}
    # What the connector writes for a directory is an empty object that ends with a slash: no file to either of us.
    assert ours == sizes
    assert told.bucket.read(f"{DIRECTORY}/new/{LARGE}") == large_content()


@pytest.mark.exhaustive
@pytest.mark.parametrize("server", ["ours"], indirect=True)  # the other one keeps no record
def test_our_server_knows_all_the_connector_asks_for(told: Told) -> None:
    assert isinstance(told.server, GcsServer)
    kinds = {request.kind for request in told.server.log}
    assert "unknown" not in kinds, [request.name for request in told.server.log if request.kind == "unknown"]
    assert {"append", "batch", "begin", "copy", "delete", "insert", "list", "read", "stat"} <= kinds


def _below(bucket: GcsFileSystem, directory: str) -> Iterator[str]:
    for entry in bucket.list(directory):
        name = f"{directory}/{entry.name}"
        if entry.is_directory:
            yield from _below(bucket, name)
        else:
            yield name
