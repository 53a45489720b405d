"""Locations, pointers and references under Flink's names, with the errors Flink's documents give for each."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.format import layout
from dagster_ckpt.datastream.storage_access import (
    CheckpointStorageAccess,
    CheckpointStorageLocationReference,
    create_checkpoint_directory,
    decode_path_from_reference,
    encode_path_as_reference,
    get_checkpoint_directory_for_job,
    new_savepoint_directory,
    resolve_checkpoint_pointer,
)
from dagster_ckpt.errors import CheckpointNotFound, CorruptMetadata, InvalidConfiguration, PublishConflict, StorageError
from dagster_ckpt.filesystem import DriverMemory, PosixFileSystem
from tests.helpers.checkpoint.memory import MemoryFileSystem

JOB_ID = "1b080b6e710aabbef8993ab18c6de98b"


@pytest.fixture
def storage(tmp_path: Path) -> PosixFileSystem:
    return PosixFileSystem(tmp_path / "storage")


def access(storage: PosixFileSystem, savepoints: str | None = None) -> CheckpointStorageAccess:
    return CheckpointStorageAccess(storage, "flights", JOB_ID, savepoints)


class TestLayout:
    def test_the_names_are_the_fields(self) -> None:
        assert layout.CHECKPOINT_DIR_PREFIX == "chk-"
        assert layout.CHECKPOINT_SHARED_STATE_DIR == "shared"
        assert layout.CHECKPOINT_TASK_OWNED_STATE_DIR == "taskowned"
        assert layout.METADATA_FILE_NAME == "_metadata"

    @pytest.mark.parametrize("base", ["hdfs://namenode:40010/flink-checkpoints", "/mnt/checkpoints/"])
    def test_the_directory_of_a_checkpoint_follows_from_base_job_and_id(self, base: str) -> None:
        directory = get_checkpoint_directory_for_job(base, "flights", JOB_ID)
        assert directory == f"{base.rstrip('/')}/flights/{JOB_ID}", "the job's name is ours"
        assert create_checkpoint_directory(directory, 17) == f"{directory}/chk-17"

    def test_without_a_base_there_is_no_directory(self) -> None:
        with pytest.raises(InvalidConfiguration, match="no base directory") as caught:
            get_checkpoint_directory_for_job(None, "flights", JOB_ID)
        assert "checkpoint_path" in caught.value.hint

    @pytest.mark.parametrize("job_id", ["", "1b08", JOB_ID.upper(), f"{JOB_ID}/.."])
    def test_what_is_no_job_id(self, storage: PosixFileSystem, job_id: str) -> None:
        with pytest.raises(InvalidConfiguration, match="is no job id"):
            get_checkpoint_directory_for_job("/base", "flights", job_id)
        with pytest.raises(InvalidConfiguration, match="is no job id"):
            CheckpointStorageAccess(storage, "flights", job_id)


class TestCheckpointLocation:
    def test_it_is_where_the_store_writes(self, storage: PosixFileSystem) -> None:
        location = access(storage).initialize_location_for_checkpoint(17)
        assert location.metadata_file == f"flights/{JOB_ID}/chk-17/_metadata"
        assert location.shared_state_directory == f"flights/{JOB_ID}/shared"
        assert location.task_owned_state_directory == "flights/taskowned"
        assert location.checkpoint_directory == layout.checkpoint_directory("flights", JOB_ID, 17)
        assert location.reference.is_default_reference
        assert str(location.reference) == "(default)"

    def test_a_complete_checkpoint_is_not_written_over(self, storage: PosixFileSystem) -> None:
        location = access(storage).initialize_location_for_checkpoint(1)
        storage.create(location.metadata_file, b"complete")
        with pytest.raises(PublishConflict, match=re.escape(f"{location.metadata_file} already exists.")):
            access(storage).initialize_location_for_checkpoint(1)
        assert access(storage).initialize_location_for_checkpoint(2).metadata_file.endswith("chk-2/_metadata")

    @pytest.mark.parametrize("number", [0, -1])
    def test_ids_start_at_1(self, storage: PosixFileSystem, number: int) -> None:
        with pytest.raises(InvalidConfiguration, match="ids start at 1"):
            access(storage).initialize_location_for_checkpoint(number)

    def test_whether_it_outlives_the_driver(self, storage: PosixFileSystem) -> None:
        assert access(storage).supports_highly_available_storage
        in_memory = DriverMemory(storage, layout.CONTROL_DIR)
        assert not CheckpointStorageAccess(in_memory, "flights", JOB_ID).supports_highly_available_storage


class TestSavepointLocation:
    def test_the_location_asked_for_goes_before_the_default_one(self, storage: PosixFileSystem, tmp_path: Path) -> None:
        by_default = access(storage, f"{tmp_path}/default")
        assert by_default.has_default_savepoint_location
        assert by_default.get_default_savepoint_directory() == f"{tmp_path}/default"
        assert by_default.initialize_location_for_savepoint(1).filesystem.url == f"{tmp_path}/default"
        asked = by_default.initialize_location_for_savepoint(1, f"file://{tmp_path}/asked")
        assert asked.filesystem.url == f"{tmp_path}/asked"

    def test_everything_of_it_is_in_one_directory_that_its_reference_names(
        self, storage: PosixFileSystem, tmp_path: Path
    ) -> None:
        location = access(storage).initialize_location_for_savepoint(3, str(tmp_path))
        assert re.fullmatch(rf"savepoint-{JOB_ID[:6]}-[0-9a-f]{{12}}", location.checkpoint_directory)
        assert location.checkpoint_directory == location.shared_state_directory == location.task_owned_state_directory
        assert decode_path_from_reference(location.reference) == f"{tmp_path}/{location.checkpoint_directory}"

    def test_without_any_location(self, storage: PosixFileSystem) -> None:
        assert not access(storage).has_default_savepoint_location
        with pytest.raises(InvalidConfiguration, match="No savepoint location given and no default location") as caught:
            access(storage).initialize_location_for_savepoint(1)
        assert "savepoint_path" in caught.value.hint

    def test_taken_names_are_tried_again_ten_times(self) -> None:
        storage = MemoryFileSystem()
        storage.create("savepoint-1b080b-taken/_metadata", b"another")
        tokens = iter([*["taken"] * 9, "free"])
        assert new_savepoint_directory(storage, JOB_ID, lambda: next(tokens)) == "savepoint-1b080b-free"
        tokens = iter(["taken"] * 10)
        with pytest.raises(StorageError, match="Failed to create savepoint directory at memory"):
            new_savepoint_directory(storage, JOB_ID, lambda: next(tokens))


class TestPointers:
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        directory = tmp_path / "base" / "chk-5"
        directory.mkdir(parents=True)
        (directory / "_metadata").write_bytes(b"not read yet")
        return directory

    @pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/_metadata", "file://{}", "file://{}/_metadata"])
    def test_every_spelling_is_one_external_pointer(self, directory: Path, spelling: str) -> None:
        location = resolve_checkpoint_pointer(spelling.format(directory))
        assert location.external_pointer == str(directory)
        assert location.metadata_file == f"{directory}/_metadata"

    def test_a_file_of_any_name_is_taken_for_a_manifest(self, directory: Path) -> None:
        (directory / "renamed").write_bytes(b"")
        assert resolve_checkpoint_pointer(f"{directory}/renamed").external_pointer == str(directory)

    def test_what_is_corrupt_resolves_and_does_not_load(self, directory: Path) -> None:
        location = resolve_checkpoint_pointer(str(directory))
        with pytest.raises(CorruptMetadata, match="chk-5/_metadata"):
            location.metadata()

    @pytest.mark.parametrize(
        ("pointer", "error", "message"),
        [
            ("", InvalidConfiguration, "empty checkpoint pointer"),
            ("file://[half/chk-1", CheckpointNotFound, "is not a valid file URI"),
            ("ceph://bucket/chk-1", CheckpointNotFound, "Cannot access file system for checkpoint/savepoint path"),
            ("/no/such/chk-1", CheckpointNotFound, "Cannot find checkpoint or savepoint file/directory"),
            ("~no-such-user/chk-1", CheckpointNotFound, "Cannot find checkpoint or savepoint file/directory"),
            ("/no/su\0ch", CheckpointNotFound, "Cannot find checkpoint or savepoint file/directory"),
            ("file:///no/su%00ch", CheckpointNotFound, "Cannot find checkpoint or savepoint file/directory"),
            (f"/no/{'x' * 256}", CheckpointNotFound, "Cannot find checkpoint or savepoint file/directory"),
            ("/x" * 5000, CheckpointNotFound, "Cannot find checkpoint or savepoint file/directory"),
            ("/no/\ud800", CheckpointNotFound, "is not a valid file URI"),
            ("s3://[x", CheckpointNotFound, "is not a valid file URI"),
            ("s3://user:secret@bucket:port/x", CheckpointNotFound, "is not a valid file URI"),
            ("hdfs://namenode:99999/x", CheckpointNotFound, "is not a valid file URI"),
        ],
    )
    def test_what_points_to_nothing(self, pointer: str, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message) as caught:
            resolve_checkpoint_pointer(pointer, "do this")
        assert "do this" in str(caught.value)
        assert "secret" not in str(caught.value)
        str(caught.value).encode()

    @pytest.mark.parametrize("slash", ["", "/"])
    def test_the_directory_of_a_lineage_is_no_pointer(self, directory: Path, slash: str) -> None:
        with pytest.raises(CheckpointNotFound, match="Cannot find meta data file '_metadata' in directory"):
            resolve_checkpoint_pointer(f"{directory.parent}{slash}")


class TestReferences:
    @given(st.text(min_size=1))
    def test_a_path_comes_back(self, path: str) -> None:
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            return
        reference = encode_path_as_reference(path)
        assert reference.reference_bytes[:4] == bytes.fromhex("055f3f18")
        assert decode_path_from_reference(reference) == path
        assert not reference.is_default_reference
        assert str(reference) == reference.reference_bytes.hex()
        assert pickle.loads(pickle.dumps(reference)) == reference

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "Cannot decode default reference"),
            (bytes.fromhex("055f3f18"), "Reference too short."),
            (b"\x05", "Reference too short."),
            (b"file:///tmp", "Reference starts with the wrong magic number"),
            (bytes.fromhex("055f3f18ff"), "Reference cannot be decoded to a path"),
        ],
    )
    def test_other_bytes_are_refused(self, data: bytes, message: str) -> None:
        with pytest.raises(InvalidConfiguration, match=re.escape(message)) as caught:
            decode_path_from_reference(CheckpointStorageLocationReference(data))
        assert caught.value.hint

    def test_no_path_is_no_reference(self) -> None:
        with pytest.raises(InvalidConfiguration, match="empty path"):
            encode_path_as_reference("")
