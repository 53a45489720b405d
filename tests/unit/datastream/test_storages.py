"""PyFlink's storages over the storage resources."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dagster_ckpt.datastream import (
    CheckpointStorage,
    Configuration,
    CustomCheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from dagster_ckpt.datastream.checkpoint_storage import configured_storage
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import DriverMemory, PosixFileSystem
from dagster_ckpt.orchestration import storages

_URI = "file://var/checkpoints/"


class TestJobManager:
    def test_without_a_path_it_is_the_drivers_memory(self) -> None:
        storage = JobManagerCheckpointStorage()
        assert storage.get_checkpoint_path() is None
        assert storage.get_savepoint_path() is None
        assert storage.get_max_state_size() == JobManagerCheckpointStorage.DEFAULT_MAX_STATE_SIZE == 5_242_880
        assert isinstance(storage.resource.filesystem(), DriverMemory)
        assert str(storage) == "JobManagerCheckpointStorage (checkpoints to JobManager) ( maxStateSize: 5242880)"

    def test_by_position(self, tmp_path: Path) -> None:
        storage = JobManagerCheckpointStorage(f"{tmp_path}/", 10_000)
        assert storage.get_checkpoint_path() == str(tmp_path)
        assert storage.get_max_state_size() == storage.resource.size_limit == 10_000
        filesystem = storage.resource.filesystem()
        assert isinstance(filesystem, PosixFileSystem)
        assert filesystem.local("job") == tmp_path / "job"
        assert str(tmp_path) in str(storage)

    def test_no_state_may_be_of_size_zero(self) -> None:
        with pytest.raises(ValueError, match="greater than 0"):
            JobManagerCheckpointStorage(max_state_size=0)


class TestFileSystem:
    def test_a_path_is_written_as_flink_writes_it(self) -> None:
        storage = FileSystemCheckpointStorage(_URI)
        assert storage.get_checkpoint_path() == "file://var/checkpoints"
        assert str(storage) == "FileSystemCheckpointStorage (checkpoints: file://var/checkpoints)"

    def test_defaults(self) -> None:
        storage = FileSystemCheckpointStorage(_URI)
        assert storage.get_savepoint_path() is None
        assert storage.get_min_file_size_threshold() == storage.resource.inline_threshold == 20_480
        assert storage.get_write_buffer_size() == 4_096
        assert FileSystemCheckpointStorage.MAX_FILE_STATE_THRESHOLD == 1_048_576

    def test_by_position(self) -> None:
        storage = FileSystemCheckpointStorage(_URI, 2_048, 8_192)
        assert storage.get_min_file_size_threshold() == storage.resource.inline_threshold == 2_048
        assert storage.get_write_buffer_size() == 8_192
        assert isinstance(storage.resource, storages.FileSystemCheckpointStorage)
        assert storage.resource.write_buffer == 8_192

    def test_there_must_be_a_path(self) -> None:
        with pytest.raises(ValueError, match="checkpoint_path must not be None"):
            FileSystemCheckpointStorage(None)

    @pytest.mark.parametrize(("threshold", "buffer"), [(-2, -1), (1_048_577, -1), (0, -2)])
    def test_sizes_out_of_range(self, threshold: int, buffer: int) -> None:
        with pytest.raises(ValueError, match="must be"):
            FileSystemCheckpointStorage(_URI, threshold, buffer)

    def test_a_path_needs_no_scheme(self, tmp_path: Path) -> None:
        filesystem = FileSystemCheckpointStorage(str(tmp_path)).resource.filesystem()
        assert isinstance(filesystem, PosixFileSystem)
        assert filesystem.local("job") == tmp_path / "job"

    def test_the_root_directory_is_refused_when_it_is_opened(self) -> None:
        storage = FileSystemCheckpointStorage("file:///")
        with pytest.raises(InvalidConfiguration, match="Cannot use the root directory"):
            storage.resource.filesystem()


class TestCustom:
    def test_it_wraps_any_resource(self, tmp_path: Path) -> None:
        resource = storages.FileSystemCheckpointStorage(checkpoint_path=str(tmp_path), working_directory="taskowned")
        storage = CustomCheckpointStorage(resource)
        assert storage.resource is resource
        assert storage.resource.live_directory("job") == tmp_path / "job" / "taskowned"

    def test_anything_else_is_refused(self) -> None:
        with pytest.raises(TypeError, match="no storage resource"):
            CustomCheckpointStorage("java")  # type: ignore[arg-type]


def test_a_storage_can_be_pickled() -> None:
    storage = FileSystemCheckpointStorage(_URI, 2_048)
    assert pickle.loads(pickle.dumps(storage)).resource == storage.resource


class TestStringKeys:
    @pytest.mark.parametrize(
        ("settings", "kind", "path"),
        [
            ({}, JobManagerCheckpointStorage, None),
            ({"execution.checkpointing.dir": "/c"}, FileSystemCheckpointStorage, "/c"),
            ({"execution.checkpointing.storage": "jobmanager"}, JobManagerCheckpointStorage, None),
            (
                {"execution.checkpointing.storage": "jobmanager", "execution.checkpointing.dir": "/c"},
                JobManagerCheckpointStorage,
                "/c",
            ),
        ],
    )
    def test_which_storage(self, settings: dict[str, str], kind: type[CheckpointStorage], path: str | None) -> None:
        storage = configured_storage(Configuration(settings))
        assert type(storage) is kind
        assert isinstance(storage, JobManagerCheckpointStorage | FileSystemCheckpointStorage)
        assert storage.get_checkpoint_path() == path

    def test_files_need_a_directory(self) -> None:
        with pytest.raises(InvalidConfiguration, match=r"execution\.checkpointing\.dir"):
            configured_storage(Configuration({"execution.checkpointing.storage": "filesystem"}))

    def test_they_fill_in_what_a_storage_leaves_open(self) -> None:
        keys = Configuration(
            {
                "execution.checkpointing.dir": "/configured",
                "execution.checkpointing.savepoint-dir": "/savepoints",
                "execution.checkpointing.data-inline-threshold": "1 kb",
                "execution.checkpointing.write-buffer-size": "64 kb",
            }
        )
        files = FileSystemCheckpointStorage("/own", 2_048).configured(keys)
        assert isinstance(files, storages.FileSystemCheckpointStorage)
        assert (files.checkpoint_path, files.savepoint_path) == ("/own", "/savepoints")
        assert (files.inline_threshold, files.write_buffer) == (2_048, 65_536)
        memory = JobManagerCheckpointStorage(savepoint_path="/mine").configured(keys)
        assert isinstance(memory, storages.JobManagerCheckpointStorage)
        assert (memory.checkpoint_path, memory.savepoint_path) == ("/configured", "/mine")
        untouched = CustomCheckpointStorage(storages.FileSystemCheckpointStorage(checkpoint_path="/own"))
        assert untouched.configured(Configuration({})) is untouched.resource
