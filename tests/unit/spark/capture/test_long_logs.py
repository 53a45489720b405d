"""A source's log lists each file that the source has ever read: at a million files it has hundreds of megabytes."""

from __future__ import annotations

import json
from pathlib import Path

from dagster_ckpt.filesystem import Part
from dagster_ckpt.spark.files.bucket_location import StoredCheckpointLocation
from tests.helpers.spark.copying_directory import CopyingDirectory, capture_and_copy
from tests.helpers.spark.live_location import LiveLocation
from tests.helpers.spark.streaming import materialize

_LISTED = json.dumps({"path": "file:///in/0.json", "timestamp": 1, "batchId": 0})
_LONG = "\n".join(["v1", *[_LISTED] * 2_000])


class _Counting(CopyingDirectory):
    """A bucket that counts the bytes it sends."""

    sent = 0

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        data = super().read_stored(path, version, part)
        self.sent += len(data)
        return data


def test_a_long_log_in_a_bucket_is_copied_there_and_not_read(tmp_path: Path) -> None:
    one = LiveLocation(tmp_path / "live")
    one.run(1)
    (one.path / "metadata").write_text(json.dumps({"id": "2f2bba4c-0f7d-4f35-98ca-5894486d6b34"}))
    (one.path / "sources" / "0" / "0").write_text(_LONG)
    bucket = _Counting(tmp_path)
    location = StoredCheckpointLocation(bucket, bucket, "live")
    first = capture_and_copy(location, 0, tmp_path / "pins")
    assert 0 < bucket.sent < len(_LONG)
    restored = materialize(first, tmp_path / "restored")
    assert (restored / "sources" / "0" / "0").read_text() == _LONG
    sent = bucket.sent
    second = capture_and_copy(location, 0, tmp_path / "more pins")
    assert bucket.sent == sent
    assert [(file.path, file.identity) for file in second.files] == [(file.path, file.identity) for file in first.files]
