"""What is known of a bucket before anybody is asked: its place, and its options."""

from __future__ import annotations

from itertools import groupby

import pytest

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.filesystem.buckets.versioned_bucket import Found, _turn


@pytest.mark.parametrize("scheme", ["gs", "gcs", "s3", "s3a"])
class TestPlaces:
    @pytest.mark.parametrize(
        ("rest", "why"),
        [
            ("://", "no name of a bucket"),
            ("://UPPER/x", "no name of a bucket"),
            (":///checkpoints-data/", "no name of a bucket"),
            ("://bucket/a?versionId=1", "more in it than a bucket"),
            ("://bucket/a#b", "more in it than a bucket"),
            ("://user:hidden@bucket/a", "more in it than a bucket"),
            ("://hidden@bucket/a", "more in it than a bucket"),
            ("://bucket/a/../b", "takes for names"),
        ],
    )
    def test_one_that_is_not_what_it_seems(self, scheme: str, rest: str, why: str) -> None:
        with pytest.raises(InvalidConfiguration, match=why) as raised:
            open_filesystem(scheme + rest)
        assert raised.value.hint
        assert "hidden" not in str(raised.value)

    def test_one_behind_a_cache(self, scheme: str) -> None:
        with pytest.raises(InvalidConfiguration, match="chain of file systems"):
            open_filesystem(f"simplecache::{scheme}://bucket/a")

    @pytest.mark.parametrize("rest", ["://bucket/a/b", "://bucket//a/b/", "://bucket/a//b"])
    def test_one_has_one_name(self, scheme: str, rest: str) -> None:
        assert open_filesystem(scheme + rest).url == f"{scheme[:2].replace('gc', 'gs')}://bucket/a/b"

    @pytest.mark.parametrize("option", ["use_listings_cache", "version_aware", "asynchronous", "password"])
    def test_options_that_nobody_knows_are_refused(self, scheme: str, option: str) -> None:
        with pytest.raises(InvalidConfiguration, match=option) as raised:
            open_filesystem(f"{scheme}://bucket/a", storage_options={option: True})
        assert "endpoint_url" in raised.value.hint


def test_directories_are_deleted_last_and_the_deepest_first() -> None:
    """A bucket with directories deletes empty ones only."""
    found = [
        *(Found(key, None, is_directory=True) for key in ("a", "a/b/c", "a/b")),
        *(Found(key, None) for key in ("a/b/c/1", "2")),
    ]
    in_turn = [[item.key for item in items] for _, items in groupby(sorted(found, key=_turn), key=_turn)]
    assert in_turn == [["a/b/c/1", "2"], ["a/b/c"], ["a/b"], ["a"]]
