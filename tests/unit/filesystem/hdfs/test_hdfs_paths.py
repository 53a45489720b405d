"""What is an ``hdfs://`` path, told without a cluster and without Java."""

from __future__ import annotations

import pickle

import pytest

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import open_filesystem


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("hdfs://", "names no directory"),
        ("hdfs:///", "names no directory"),
        ("hdfs://checkpoints", "takes 'checkpoints' for a NameNode"),
        ("hdfs://namenode:8020/", "takes 'namenode:8020' for a NameNode"),
        (
            "hdfs://name node:8020/a",
            "neither host:port|cannot be read as a path or URL",
        ),
        ("hdfs://namenode:port/a", "neither host:port|cannot be read as a path or URL"),
        ("hdfs://namenode/a?b", "more in it than a NameNode"),
        ("hdfs://namenode/a#b", "more in it than a NameNode"),
        ("hdfs://user:hidden@namenode/a", "more in it than a NameNode"),
        ("hdfs://namenode/a/../b", "takes for names"),
        ("simplecache::hdfs://namenode/a", "chain of file systems"),
    ],
)
def test_a_path_that_is_not_what_it_seems(location: str, why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why) as raised:
        open_filesystem(location)
    assert raised.value.hint
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("location", ["hdfs://namenode:8020/a/b", "hdfs://namenode:8020//a/b/"])
def test_one_place_has_one_name(location: str) -> None:
    opened = open_filesystem(location, storage_options={"dfs.replication": 2, "dfs.client.use.datanode.hostname": True})
    assert opened.url == "hdfs://namenode:8020/a/b"
    assert opened.storage_options == {"dfs.replication": "2", "dfs.client.use.datanode.hostname": "true"}
    copied = pickle.loads(pickle.dumps(opened))
    assert (copied.url, copied.storage_options) == (opened.url, opened.storage_options)


@pytest.mark.parametrize("options", [{"token": "hidden"}, {"dfs.replication": ["hidden"]}])
def test_options_that_are_not_hadoops_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfiguration, match=next(iter(options))) as raised:
        open_filesystem("hdfs://namenode/a", storage_options=options)
    assert "dfs." in raised.value.hint
    assert "hidden" not in str(raised.value)
