"""HDFS as a storage of checkpoints: the contract, and what goes wrong, against a real NameNode and DataNode."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.errors import (
    JavaNotFound,
    PublishConflict,
    PublishUnknown,
    StorageError,
    StorageUnusable,
)
from dagster_ckpt.filesystem import Entry, HdfsFileSystem, Part, Stopped, Written, open_filesystem
from dagster_ckpt.filesystem.hdfs import client_calls, hadoop_jvm
from dagster_ckpt.filesystem.hdfs.hadoop_jvm import JavaFailure
from dagster_ckpt.testing.filesystem_contract import FileSystemContract
from tests.servers.hdfs_cluster import MiniDfs
from tests.system.hdfs import racing
from tests.system.hdfs.conftest import IMPATIENT

pytestmark = pytest.mark.integration


class TestContract(FileSystemContract):
    @pytest.fixture
    def storage(self, cluster: MiniDfs, directory: str) -> HdfsFileSystem:
        return HdfsFileSystem(cluster.authority(), directory, IMPATIENT)


def never() -> bool:
    return False


def left_by_a_dead_writer(name: str) -> str:
    return f".{name}.{uuid.uuid4().hex}.tmp"


def kill_jvm() -> None:
    assert hadoop_jvm._running is not None
    process = hadoop_jvm._running._process
    process.send_signal(signal.SIGKILL)
    process.wait()


# --- a create is settled by what is there ---------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_of_eight_writers_in_four_processes_one_wins(storage: HdfsFileSystem) -> None:
    spawn = multiprocessing.get_context("spawn")
    at_once, won = spawn.Barrier(8), spawn.Queue()
    processes = [
        spawn.Process(target=racing.race, args=(storage, [number, number + 4], at_once, won)) for number in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    winners = [won.get(timeout=60) for _ in range(racing.TURNS)]
    assert won.empty()
    assert Counter(turn for turn, _ in winners) == dict.fromkeys(range(racing.TURNS), 1)
    for turn, writer in winners:
        assert storage.read(f"claims/{turn}") == racing.content(writer)


def rename_that(monkeypatch: pytest.MonkeyPatch, before: Any = None, after: Any = None) -> None:
    """The next rename does something else as well; the ones after it are as ever."""
    real = client_calls.rename

    def once(*arguments: Any) -> None:
        monkeypatch.setattr(client_calls, "rename", real)
        if before is not None:
            before()
        real(*arguments)
        if after is not None:
            after()

    monkeypatch.setattr(client_calls, "rename", once)


def lose_the_reply() -> None:
    raise JavaFailure("lost", [("SocketTimeoutException", "60000 millis timeout")])


def test_a_create_whose_reply_is_lost_has_succeeded(storage: HdfsFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    rename_that(monkeypatch, after=lose_the_reply)
    storage.create("a/f", b"mine")
    assert storage.read("a/f") == b"mine"


def test_a_create_that_did_not_arrive_never_will(
    storage: HdfsFileSystem, cluster: MiniDfs, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_that(monkeypatch, before=lose_the_reply)
    with pytest.raises(StorageError, match="60000 millis timeout") as raised:
        storage.create("a/f", b"mine")
    assert not isinstance(raised.value, PublishUnknown)
    assert cluster.names(f"{directory}/a") == [], "a rename that is still on its way finds nothing"


def test_a_name_that_somebody_took_meanwhile(
    storage: HdfsFileSystem, cluster: MiniDfs, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_that(monkeypatch, before=lambda: cluster.put(f"{directory}/a/f", b"another's"))
    with pytest.raises(PublishConflict, match="a/f already exists and holds something else"):
        storage.create("a/f", b"mine")
    assert storage.read("a/f") == b"another's"
    assert cluster.names(f"{directory}/a") == ["f"]


def test_a_directory_that_is_deleted_meanwhile_is_made_again(
    storage: HdfsFileSystem, cluster: MiniDfs, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary: list[str] = []

    def delete() -> None:
        temporary.extend(cluster.names(f"{directory}/a"))
        storage.remove_directory("a")
        assert cluster.names(directory) == []

    rename_that(monkeypatch, before=delete)
    storage.create("a/f", b"mine")
    assert len(temporary) == 1
    assert cluster.names(f"{directory}/a") == ["f"]
    assert storage.read("a/f") == b"mine"


@pytest.mark.exhaustive
def test_nobody_knows_what_became_of_a_create_when_the_namenode_is_gone(
    storage: HdfsFileSystem, cluster: MiniDfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("a/before", b"x")
    rename_that(monkeypatch, before=cluster.stop_namenode)
    try:
        with pytest.raises(PublishUnknown, match=r"Nobody can say whether hdfs://.*/a/f was created"):
            storage.create("a/f", b"mine")
        with pytest.raises(StorageError, match=r"Could not create hdfs://.*/a/g") as raised:
            storage.create("a/g", b"mine")
        assert not isinstance(raised.value, PublishUnknown), "nothing was asked of it"
        assert "NameNode" in raised.value.hint
        with pytest.raises(StorageError, match="Could not read"):
            storage.read("a/before")
        with pytest.raises(StorageUnusable, match="Checkpoints cannot be written to hdfs://"):
            storage.probe()
    finally:
        cluster.start_namenode()
    assert storage.list("a") == [Entry("before", is_directory=False)]
    storage.create("a/f", b"mine")
    assert storage.read("a/f") == b"mine"


# --- the JVM dies ---------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_writer_killed_before_its_rename_leaves_nothing(
    storage: HdfsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_that(monkeypatch, before=kill_jvm)
    with pytest.raises(StorageError, match="the JVM of Hadoop's client is gone"):
        storage.create("a/f", b"mine")
    assert storage.list("a") == []
    storage.create("a/f", b"another's")
    assert storage.read("a/f") == b"another's"


def test_a_writer_killed_after_its_rename_has_created(storage: HdfsFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> None:
        kill_jvm()
        lose_the_reply()

    rename_that(monkeypatch, after=die)
    storage.create("a/f", b"mine")
    assert storage.read("a/f") == b"mine"


@pytest.mark.exhaustive
def test_a_data_file_whose_writer_is_killed_can_be_deleted(storage: HdfsFileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(24 << 20))
    looks = iter([never, never, kill_jvm])

    def stop() -> bool:
        return bool(next(looks, never)())

    with pytest.raises(StorageError, match="the JVM of Hadoop's client is gone"):
        storage.write("shared/f", tmp_path / "f", stop)
    assert storage.list("shared") == [Entry("f", is_directory=False)], "its writer never closed it"
    storage.remove("shared/f")
    assert storage.list("shared") == []


@pytest.mark.exhaustive
def test_a_forked_process_has_a_jvm_of_its_own(storage: HdfsFileSystem) -> None:
    storage.create("f", b"of the parent")

    def child() -> None:
        storage.create("g", storage.read("f") + b", read by the child")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which is what is tested
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
    process.join()
    assert process.exitcode == 0
    assert storage.read("g") == b"of the parent, read by the child"


@pytest.mark.exhaustive
def test_the_jvm_above_a_driver_is_left_alone(storage: HdfsFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that pauses its Spark writes on: so Hadoop's client is in no JVM that is paused."""
    storage.probe()
    kill_jvm()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "not asked for")
    storage.create("f", b"x")
    assert storage.read("f") == b"x"
    assert os.environ["PYSPARK_GATEWAY_PORT"] == "1"


def test_without_java_it_is_named(storage: HdfsFileSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hadoop_jvm, "_running", None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StorageUnusable, match=f"none in JAVA_HOME, which is {tmp_path}"):
        storage.probe()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaNotFound, match="none on the PATH"):
        storage.probe()


# --- files ----------------------------------------------------------------------------------------------------------


def test_what_is_created_is_on_disk(storage: HdfsFileSystem, cluster: MiniDfs, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(3 << 20))
    for write in (
        lambda: storage.create("f", b"x"),
        lambda: storage.replace("f", b"y"),
        lambda: storage.write("g", b"z", never),
        lambda: storage.write("h", tmp_path / "f", never),
    ):
        before = cluster.syncs
        write()
        assert cluster.syncs > before


def test_what_dead_writers_left_is_not_listed_and_goes_with_its_directory(
    storage: HdfsFileSystem, cluster: MiniDfs, directory: str
) -> None:
    storage.create("d/f", b"x")
    cluster.put(f"{directory}/d/{left_by_a_dead_writer('f')}", b"")
    assert storage.list("d") == [Entry("f", is_directory=False)]
    storage.remove_directory("d")
    assert len(cluster.names(f"{directory}/d")) == 2, "a directory with files in it is left alone"
    storage.remove("d/f")
    assert storage.list("d") == []
    storage.remove_directory("d")
    assert cluster.names(directory) == []


def test_a_stop_in_mid_file_leaves_nothing(
    storage: HdfsFileSystem, cluster: MiniDfs, directory: str, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(bytes(40 << 20))
    looks = iter([False, False, True])
    with pytest.raises(Stopped):
        storage.write("shared/f", tmp_path / "f", lambda: next(looks))
    assert cluster.names(f"{directory}/shared") == []
    assert next(looks, None) is None


def test_bytes_too_many_for_py4j(storage: HdfsFileSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client_calls, "write_small", None)
    data = os.urandom(2 << 20)
    storage.create("a/f", data)
    assert storage.read("a/f") == data
    written = storage.write("a/g", data, never)
    assert written == Written(len(data), hashlib.sha256(data).hexdigest())
    assert storage.fetch("a/g", tmp_path / "g") == written


def test_what_is_beyond_the_end_is_left_out(storage: HdfsFileSystem, tmp_path: Path) -> None:
    storage.create("f", b"0123456789")
    assert storage.fetch("f", tmp_path / "a", Part(6, 100)) == Written(4, hashlib.sha256(b"6789").hexdigest())
    assert storage.checksum("f", Part(100, 1)) == Written(0, hashlib.sha256().hexdigest())


def test_neither_files_are_directories_nor_directories_files(storage: HdfsFileSystem) -> None:
    storage.create("d/f", b"x")
    assert storage.list("d/f") == []
    for read in (storage.read, storage.size, storage.checksum):
        with pytest.raises(FileNotFoundError):
            read("d")
    with pytest.raises(StorageError, match="d"):
        storage.create("d", b"x")
    with pytest.raises(StorageError, match="d/f/g"):
        storage.create("d/f/g", b"x")
    with pytest.raises(StorageError, match="it is a file"):
        storage.remove_directory("d/f")
    assert storage.read("d/f") == b"x"


# --- what the cluster says no to ------------------------------------------------------------------------------------


def test_what_is_not_allowed_names_user_and_path(cluster: MiniDfs) -> None:
    closed = HdfsFileSystem(cluster.authority(), "/closed/x", IMPATIENT)
    with pytest.raises(StorageError, match=r'Permission denied: user=\w+, access=WRITE, inode="/closed"') as raised:
        closed.create("f", b"x")
    assert "hdfs dfs -chown" in raised.value.hint
    with pytest.raises(StorageUnusable, match="Permission denied") as unusable:
        closed.probe()
    assert unusable.value.hint == raised.value.hint


def test_safe_mode(storage: HdfsFileSystem, cluster: MiniDfs) -> None:
    storage.create("a/f", b"x")
    cluster.safe_mode("ENTER")
    try:
        with pytest.raises(StorageError, match="safe mode") as raised:
            storage.create("a/g", b"x")
        assert "hdfs dfsadmin -safemode get" in raised.value.hint
        assert storage.read("a/f") == b"x"
    finally:
        cluster.safe_mode("LEAVE")
    storage.create("a/g", b"x")


def test_a_quota(cluster: MiniDfs, directory: str) -> None:
    cluster.set_space_quota(directory, 1 << 20)
    full = HdfsFileSystem(cluster.authority(), directory, IMPATIENT)
    with pytest.raises(StorageError, match="quota") as raised:
        full.write("f", bytes(3 << 20), never)
    assert "hdfs dfsadmin -setSpaceQuota" in raised.value.hint
    assert full.list("") == []


@pytest.mark.exhaustive
def test_no_datanode(storage: HdfsFileSystem, cluster: MiniDfs) -> None:
    storage.create("a/f", b"x")
    cluster.stop_datanode()
    try:
        with pytest.raises(StorageError, match="could only be written to 0 of the") as raised:
            storage.create("a/g", b"x")
        assert "hdfs dfsadmin -report" in raised.value.hint
        assert not isinstance(raised.value, PublishUnknown)
        with pytest.raises(StorageError, match="Could not read"):
            storage.read("a/f")
    finally:
        cluster.start_datanode()
    storage.create("a/g", b"x")
    assert storage.read("a/f") == b"x"
    assert len(storage.list("a")) == 2


# --- two NameNodes --------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(jvm: Any, tmp_path: Path) -> Iterator[MiniDfs]:
    running = MiniDfs(jvm, tmp_path, pair=True)
    yield running
    running.close()


@pytest.mark.exhaustive
def test_a_nameservice_goes_on_when_its_namenode_dies(pair: MiniDfs) -> None:
    standby = HdfsFileSystem(pair.authority(1), "/open/a", IMPATIENT)
    with pytest.raises(StorageError, match="standby") as raised:
        standby.read("f")
    assert "nameservice" in raised.value.hint
    name, configuration = pair.as_nameservice
    storage = open_filesystem(f"hdfs://{name}/open/a", storage_options={**IMPATIENT, **configuration})
    storage.probe()
    storage.create("f", b"x")
    pair.fail_over()
    assert storage.read("f") == b"x"
    with pytest.raises(PublishConflict):
        storage.create("f", b"y")
    storage.create("g", b"y")


# --- paths and options ----------------------------------------------------------------------------------------------


def test_the_default_file_system(cluster: MiniDfs, directory: str) -> None:
    there = open_filesystem(f"hdfs://{cluster.authority()}{directory}")
    there.create("f", b"x")
    same = open_filesystem(
        f"hdfs://{directory}", storage_options={"fs.defaultFS": f"hdfs://{cluster.authority()}", "dfs.replication": 1}
    )
    assert same.read("f") == b"x"
    assert open_filesystem("hdfs:///elsewhere", like=same).storage_options == same.storage_options
    with pytest.raises(StorageUnusable, match="the default file system of Hadoop's configuration is no HDFS"):
        open_filesystem(f"hdfs://{directory}").read("f")
