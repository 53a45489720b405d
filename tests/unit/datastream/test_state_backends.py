"""PyFlink's state backends over ours, the older names with their storage."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt.config import state_backend as ours
from dagster_ckpt.datastream import (
    Configuration,
    CustomStateBackend,
    EmbeddedRocksDBStateBackend,
    FlinkDifference,
    FsStateBackend,
    HashMapStateBackend,
    JobManagerCheckpointStorage,
    MemoryStateBackend,
    PredefinedOptions,
    RocksDBStateBackend,
    StateBackend,
)
from dagster_ckpt.datastream.rocksdb_state_backend import configured_backend
from dagster_ckpt.errors import InvalidConfiguration

#: For the tests that name something by its import path.
HEAP = ours.HashMapStateBackend()
NOT_A_BACKEND = "heap"

_URI = "file://var/checkpoints/"


def test_names_since_113_say_nothing_about_checkpoints() -> None:
    for backend in (HashMapStateBackend(), EmbeddedRocksDBStateBackend(), CustomStateBackend(HEAP)):
        assert backend.checkpoint_storage is None
    assert HashMapStateBackend().to_config() == ours.HashMapStateBackend()
    assert CustomStateBackend(HEAP).to_config() is HEAP


def test_a_custom_backend_is_one_of_ours() -> None:
    with pytest.raises(TypeError, match="no state backend"):
        CustomStateBackend("com.example.Factory")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "backend",
    [
        HashMapStateBackend(),
        MemoryStateBackend(max_state_size=1_000),
        FsStateBackend(_URI, "/savepoints"),
        EmbeddedRocksDBStateBackend(True),
        RocksDBStateBackend(_URI, True),
        CustomStateBackend(HEAP),
    ],
    ids=lambda backend: type(backend).__name__,
)
def test_a_backend_can_be_pickled(backend: StateBackend) -> None:
    copy = pickle.loads(pickle.dumps(backend))
    assert type(copy) is type(backend)
    assert copy.to_config() == backend.to_config()
    storage = backend.checkpoint_storage
    assert (copy.checkpoint_storage and copy.checkpoint_storage.resource) == (storage and storage.resource)


def test_what_a_job_was_given_is_not_changed_by_a_later_setter() -> None:
    backend = EmbeddedRocksDBStateBackend()
    given = backend.to_config()
    backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
    assert given == ours.EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=False)
    assert backend.to_config() != given


class TestMemory:
    def test_heap_and_the_drivers_memory(self) -> None:
        backend = MemoryStateBackend()
        assert backend.to_config() == ours.HashMapStateBackend()
        assert isinstance(backend.checkpoint_storage, JobManagerCheckpointStorage)
        assert backend.get_max_state_size() == MemoryStateBackend.DEFAULT_MAX_STATE_SIZE == 5_242_880
        assert backend.is_using_asynchronous_snapshots()

    def test_by_position(self) -> None:
        backend = MemoryStateBackend("/checkpoints", "/savepoints", 1_000, True)
        assert backend.get_max_state_size() == 1_000
        storage = backend.checkpoint_storage
        assert isinstance(storage, JobManagerCheckpointStorage)
        assert (storage.get_checkpoint_path(), storage.get_savepoint_path()) == ("/checkpoints", "/savepoints")
        assert "1000" in str(backend)


class TestFiles:
    def test_by_position(self) -> None:
        backend = FsStateBackend(_URI, "/savepoints", 2_048, 8_192, True)
        assert backend.to_config() == ours.HashMapStateBackend()
        assert backend.get_checkpoint_path() == "file://var/checkpoints"
        assert backend.get_min_file_size_threshold() == 2_048
        assert backend.get_write_buffer_size() == 8_192
        assert backend.checkpoint_storage is not None
        assert backend.checkpoint_storage.get_savepoint_path() == "/savepoints"
        assert "file://var/checkpoints" in str(backend)

    def test_defaults(self) -> None:
        backend = FsStateBackend(_URI)
        assert backend.get_min_file_size_threshold() == 20_480
        assert backend.get_write_buffer_size() == 4_096
        assert backend.is_using_asynchronous_snapshots()

    def test_there_must_be_a_directory(self) -> None:
        with pytest.raises(ValueError, match="checkpoint_directory_uri must not be None"):
            FsStateBackend()


@pytest.mark.parametrize(
    "make",
    [
        lambda: MemoryStateBackend(using_asynchronous_snapshots=False),
        lambda: FsStateBackend(_URI, using_asynchronous_snapshots=False),
    ],
)
def test_captures_are_always_beside_the_query(make: Callable[[], MemoryStateBackend | FsStateBackend]) -> None:
    with pytest.warns(FlinkDifference, match="beside the query") as told:
        backend = make()
    assert len(told) == 1
    assert not backend.is_using_asynchronous_snapshots()


class TestRocksDB:
    def test_checkpoints_go_to_a_directory(self) -> None:
        backend = RocksDBStateBackend(_URI)
        checkpoint_backend = backend.get_checkpoint_backend()
        assert isinstance(checkpoint_backend, FsStateBackend)
        assert checkpoint_backend.get_checkpoint_path() == "file://var/checkpoints"
        assert backend.checkpoint_storage is checkpoint_backend.checkpoint_storage

    def test_or_where_another_backend_says(self) -> None:
        memory = MemoryStateBackend()
        backend = RocksDBStateBackend(checkpoint_stream_backend=memory)
        assert backend.get_checkpoint_backend() is memory
        assert backend.checkpoint_storage is memory.checkpoint_storage

    def test_somebody_must_say(self) -> None:
        with pytest.raises(ValueError, match="must not both be None"):
            RocksDBStateBackend()
        with pytest.raises(ValueError, match="does not say where"):
            RocksDBStateBackend(checkpoint_stream_backend=HashMapStateBackend())

    def test_incremental_is_changelogs_and_off_by_default(self) -> None:
        assert not RocksDBStateBackend(_URI).is_incremental_checkpoints_enabled()
        full = ours.EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=False)
        assert RocksDBStateBackend(_URI).to_config() == full
        assert RocksDBStateBackend(_URI, True).is_incremental_checkpoints_enabled()
        assert RocksDBStateBackend(_URI, True).to_config() == ours.EmbeddedRocksDBStateBackend()

    def test_every_setter_reaches_the_job(self, tmp_path: Path) -> None:
        backend = RocksDBStateBackend(_URI)
        backend.set_predefined_options(PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM)
        backend.set_options("my_company.rocksdb:options")
        backend.set_db_storage_paths(f"{tmp_path}/a", f"{tmp_path}/b")
        backend.set_number_of_transfering_threads(8)
        assert backend.get_predefined_options() is PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM
        assert backend.get_options() == "my_company.rocksdb:options"
        assert backend.get_db_storage_paths() == [f"{tmp_path}/a", f"{tmp_path}/b"]
        assert backend.get_number_of_transfering_threads() == backend.get_number_of_transfer_threads() == 8
        assert backend.to_config() == ours.EmbeddedRocksDBStateBackend(
            enable_incremental_checkpointing=False,
            predefined_options=PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM,
            db_storage_paths=[f"{tmp_path}/a", f"{tmp_path}/b"],
            number_of_transfer_threads=8,
            options="my_company.rocksdb:options",
        )
        backend.set_db_storage_paths(None)
        assert backend.get_db_storage_paths() is None
        assert backend.to_config().launch_conf() == {}

    def test_defaults(self) -> None:
        backend = EmbeddedRocksDBStateBackend()
        assert backend.get_predefined_options() is PredefinedOptions.DEFAULT
        assert backend.get_options() is None
        assert backend.get_db_storage_paths() is None
        assert backend.get_number_of_transfering_threads() == 1

    def test_the_profiles_have_flinks_numbers(self) -> None:
        backend = EmbeddedRocksDBStateBackend()
        for number, name in enumerate(
            ("DEFAULT", "SPINNING_DISK_OPTIMIZED", "SPINNING_DISK_OPTIMIZED_HIGH_MEM", "FLASH_SSD_OPTIMIZED")
        ):
            backend.set_predefined_options(number)  # type: ignore[arg-type]  # PyFlink 1.10's constants
            assert backend.get_predefined_options() is PredefinedOptions[name]

    @pytest.mark.parametrize(
        ("setter", "value", "said"),
        [
            ("set_predefined_options", None, "PredefinedOptions"),
            ("set_options", "com.example.Factory", "import path"),
            ("set_db_storage_paths", "relative", "absolute"),
            ("set_number_of_transfering_threads", 0, "at least 1"),
        ],
    )
    def test_a_value_that_cannot_be_used_is_refused_at_once(self, setter: str, value: object, said: str) -> None:
        backend = EmbeddedRocksDBStateBackend()
        before = backend.to_config()
        with pytest.raises(InvalidConfiguration, match=said):
            getattr(backend, setter)(value)
        assert backend.to_config() == before

    def test_there_is_no_compaction_filter_to_switch(self) -> None:
        backend = RocksDBStateBackend(_URI)
        assert backend.is_ttl_compaction_filter_enabled()
        with pytest.warns(FlinkDifference, match="transformWithState") as told:
            backend.disable_ttl_compaction_filter()
        assert len(told) == 1
        assert not backend.is_ttl_compaction_filter_enabled()
        with pytest.warns(FlinkDifference, match="transformWithState"):
            backend.enable_ttl_compaction_filter()
        assert backend.is_ttl_compaction_filter_enabled()


class TestStringKeys:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("hashmap", HashMapStateBackend),
            ("rocksdb", EmbeddedRocksDBStateBackend),
            (f"{__name__}.HEAP", CustomStateBackend),
        ],
    )
    def test_which_backend(self, name: str, kind: type[StateBackend]) -> None:
        assert type(configured_backend(Configuration({"state.backend.type": name}))) is kind

    def test_none_is_named(self) -> None:
        assert configured_backend(Configuration({})) is None

    def test_a_path_to_something_else(self) -> None:
        with pytest.raises(InvalidConfiguration, match="is a str"):
            configured_backend(Configuration({"state.backend.type": f"{__name__}.NOT_A_BACKEND"}))

    def test_incremental_is_theirs_unless_the_backend_says(self) -> None:
        keys = Configuration({"execution.checkpointing.incremental": True})
        assert EmbeddedRocksDBStateBackend().configured(keys) == ours.EmbeddedRocksDBStateBackend()
        full = ours.EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=False)
        assert EmbeddedRocksDBStateBackend(False).configured(keys) == full
        assert EmbeddedRocksDBStateBackend().configured(Configuration({})) == full
        assert HashMapStateBackend().configured(keys) == ours.HashMapStateBackend()
