"""Objects that are pinned in their bucket by their version: what is gone or differs is never taken for the object."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.format.snapshot import StoredSource
from dagster_ckpt.errors import CaptureIncomplete
from tests.helpers.checkpoint.memory import CopyingMemory


@pytest.fixture
def pinned() -> StoredSource:
    bucket = CopyingMemory()
    bucket.replace("state/1.sst", b"what was pinned")
    return StoredSource(bucket, "state/1.sst", bucket.stored("state/1.sst"))


def test_its_bytes_come_back(pinned: StoredSource, tmp_path: Path) -> None:
    pinned.fetch(tmp_path / "fetched")
    assert pinned.read() == (tmp_path / "fetched").read_bytes() == b"what was pinned"


@pytest.mark.parametrize("content", [None, b"a newer object"])
def test_one_that_was_deleted_or_replaced_is_incomplete(
    pinned: StoredSource, tmp_path: Path, content: bytes | None
) -> None:
    assert isinstance(pinned.copies, CopyingMemory)
    if content is None:
        pinned.copies.remove(pinned.path)
    else:
        pinned.copies.replace(pinned.path, content)
    for read in (pinned.read, lambda: pinned.fetch(tmp_path / "fetched")):
        with pytest.raises(CaptureIncomplete, match=r"state/1\.sst is not what was pinned any more"):
            read()


def test_other_bytes_than_those_pinned_are_incomplete(pinned: StoredSource, tmp_path: Path) -> None:
    wrong = replace(pinned, of=replace(pinned.of, crc32c="AAAAAA==", md5=None))
    for read in (wrong.read, lambda: wrong.fetch(tmp_path / "fetched")):
        with pytest.raises(CaptureIncomplete, match="do not match the pinned object"):
            read()
