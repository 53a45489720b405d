from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

import dagster_ckpt
from dagster_ckpt import (
    CustomStateBackend,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    PredefinedOptions,
)
from dagster_ckpt.config.configuration import Configuration
from dagster_ckpt.config.state_backend import (
    HDFS_PROVIDER,
    ROCKSDB_PROVIDER,
    StateBackend,
    StateLayout,
    configured_backend,
)
from dagster_ckpt.errors import InvalidConfiguration

_STATE = "spark.sql.streaming.stateStore"
_ROCKSDB = f"{_STATE}.rocksdb."
_THEIRS = "com.example.TheirStateStoreProvider"


def small_blocks() -> Mapping[str, Any]:
    """An options factory."""
    return {
        "blockSizeKB": 16,
        f"{_ROCKSDB}compression": "zstd",
        "boundedMemoryUsage": True,
        "writeBufferCacheRatio": 0.25,
    }


NO_FACTORY = {"blockSizeKB": 16}
_HERE = f"{__name__}:"


def rocksdb(**options: Any) -> dict[str, str]:
    """What a RocksDB backend sets of RocksDB, by short names."""
    conf = EmbeddedRocksDBStateBackend(**options).spark_conf()
    assert conf[f"{_STATE}.providerClass"] == ROCKSDB_PROVIDER
    return {key.removeprefix(_ROCKSDB): value for key, value in conf.items() if key.startswith(_ROCKSDB)}


def test_the_exports_are_sorted_and_there() -> None:
    assert dagster_ckpt.__all__ == sorted(dagster_ckpt.__all__)
    assert all(hasattr(dagster_ckpt, name) for name in dagster_ckpt.__all__)


@pytest.mark.parametrize(
    "backend",
    [
        HashMapStateBackend(),
        EmbeddedRocksDBStateBackend(
            False, PredefinedOptions.FLASH_SSD_OPTIMIZED, ["/ssd", "/ssd2"], 4, "package.module:name"
        ),
        EmbeddedRocksDBStateBackend(options=small_blocks),
        CustomStateBackend(_THEIRS, {f"{_STATE}.minDeltasForSnapshot": "3"}, "rocksdb"),
    ],
    ids=lambda backend: type(backend).__name__,
)
def test_a_backend_is_a_value(backend: StateBackend) -> None:
    copy = pickle.loads(pickle.dumps(backend))
    assert copy == backend
    assert hash(copy) == hash(backend)
    assert copy is not backend
    for field in fields(backend):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(backend, field.name, None)


def test_what_is_given_cannot_be_changed_from_outside() -> None:
    paths, conf = ["/ssd"], {f"{_STATE}.minDeltasForSnapshot": "3"}
    rocks, custom = EmbeddedRocksDBStateBackend(db_storage_paths=paths), CustomStateBackend(_THEIRS, conf, "hdfs")
    paths.append("/hdd")
    conf.clear()
    assert rocks.db_storage_paths == ("/ssd",)
    assert custom.spark_conf()[f"{_STATE}.minDeltasForSnapshot"] == "3"


def test_the_heap_knows_state_format_1_only() -> None:
    backend = HashMapStateBackend()
    assert (backend.provider, backend.state_layout) == (HDFS_PROVIDER, StateLayout.HDFS)
    assert backend.spark_conf() == {f"{_STATE}.providerClass": HDFS_PROVIDER, f"{_STATE}.checkpointFormatVersion": "1"}
    assert not backend.warnings()
    assert not backend.launch_conf()


class TestPredefinedOptions:
    def test_names_and_numbers_are_flinks(self) -> None:
        assert {option.name: option.value for option in PredefinedOptions} == {
            "DEFAULT": 0,
            "SPINNING_DISK_OPTIMIZED": 1,
            "SPINNING_DISK_OPTIMIZED_HIGH_MEM": 2,
            "FLASH_SSD_OPTIMIZED": 3,
        }
        assert list(PredefinedOptions) == [0, 1, 2, 3], "PyFlink 1.10's are plain numbers"

    @pytest.mark.parametrize(
        ("profile", "options"),
        [
            (PredefinedOptions.SPINNING_DISK_OPTIMIZED, {"maxOpenFiles": "-1"}),
            (PredefinedOptions.FLASH_SSD_OPTIMIZED, {"maxOpenFiles": "-1"}),
            (
                PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM,
                {
                    "blockCacheSizeMB": "256",
                    "blockSizeKB": "128",
                    "maxOpenFiles": "-1",
                    "maxWriteBufferNumber": "4",
                    "writeBufferSizeMB": "64",
                },
            ),
        ],
    )
    def test_what_spark_can_set_is_set(self, profile: PredefinedOptions, options: dict[str, str]) -> None:
        assert rocksdb(predefined_options=profile) == {"changelogCheckpointing.enabled": "true", **options}

    def test_the_default_sets_nothing_and_warns_of_nothing(self) -> None:
        assert rocksdb() == {"changelogCheckpointing.enabled": "true"}
        assert not EmbeddedRocksDBStateBackend().warnings()

    @pytest.mark.parametrize(
        ("profile", "unsettable"),
        [
            (PredefinedOptions.SPINNING_DISK_OPTIMIZED, {"setIncreaseParallelism(4)"}),
            (PredefinedOptions.FLASH_SSD_OPTIMIZED, {"setIncreaseParallelism(4)"}),
            (
                PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM,
                {
                    "setIncreaseParallelism(4)",
                    "setMinWriteBufferNumberToMerge(3)",
                    "setTargetFileSizeBase(256 MB)",
                    "setMaxBytesForLevelBase(1 GB)",
                },
            ),
        ],
    )
    def test_what_spark_cannot_set_is_named(self, profile: PredefinedOptions, unsettable: set[str]) -> None:
        (warning,) = EmbeddedRocksDBStateBackend(predefined_options=profile).warnings()
        assert f"PredefinedOptions.{profile.name}" in warning
        assert all(name in warning for name in unsettable)
        assert warning.count("(") == len(unsettable), "no more and no less"


class TestOptions:
    @pytest.mark.parametrize("factory", [small_blocks, f"{_HERE}small_blocks"])
    def test_they_go_on_top_of_the_predefined_ones(self, factory: Callable[[], Mapping[str, Any]] | str) -> None:
        high_mem = PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM
        assert rocksdb(predefined_options=high_mem, options=factory) == {
            **rocksdb(predefined_options=high_mem),
            "blockSizeKB": "16",
            "compression": "zstd",
            "boundedMemoryUsage": "true",
            "writeBufferCacheRatio": "0.25",
        }

    def test_the_factory_is_asked_when_the_query_starts_and_not_before(self) -> None:
        asked: list[int] = []

        def counted() -> Mapping[str, int]:
            asked.append(1)
            return {"blockSizeKB": 10 * len(asked)}

        backend = EmbeddedRocksDBStateBackend(options=counted)
        assert not asked
        assert [backend.spark_conf()[f"{_ROCKSDB}blockSizeKB"] for _ in range(2)] == ["10", "20"]

    def test_what_a_factory_raises_is_its_own(self) -> None:
        with pytest.raises(ZeroDivisionError):
            rocksdb(options=lambda: {"blockSizeKB": 1 // 0})

    @pytest.mark.parametrize("key", ["targetFileSizeBase", "blockSizeKb", f"{_ROCKSDB}maxBackgroundJobs", "", "a.b"])
    def test_an_unknown_key_is_refused_by_name(self, key: str) -> None:
        with pytest.raises(InvalidConfiguration, match=f"no RocksDB option '{key}'") as refused:
            rocksdb(options=lambda: {key: 1})
        assert "blockSizeKB" in refused.value.hint

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("blockSizeKB", "many"),
            ("blockSizeKB", -1),
            ("blockSizeKB", 1.5),
            ("blockSizeKB", True),
            ("maxOpenFiles", "1e3"),
            ("boundedMemoryUsage", "yes"),
            ("boundedMemoryUsage", 1),
            ("writeBufferCacheRatio", 1.5),
            ("highPriorityPoolRatio", -0.1),
            ("compression", "gzip"),
            ("compression", None),
            ("mergeOperatorVersion", 3),
        ],
    )
    def test_a_value_that_spark_could_not_use_is_refused(self, key: str, value: object) -> None:
        with pytest.raises(InvalidConfiguration, match=f"RocksDB option {key} must be .*, not {value!r}"):
            rocksdb(options=lambda: {key: value})

    def test_incremental_checkpointing_is_said_in_one_place(self) -> None:
        assert rocksdb(enable_incremental_checkpointing=False) == {"changelogCheckpointing.enabled": "false"}
        with pytest.raises(InvalidConfiguration, match="is enable_incremental_checkpointing"):
            rocksdb(options=lambda: {"changelogCheckpointing.enabled": "true"})

    @pytest.mark.parametrize("path", ["com.example.OptionsFactory", ":name", "module:", ""])
    def test_what_is_no_import_path_is_refused_at_once(self, path: str) -> None:
        with pytest.raises(InvalidConfiguration, match="not an import path like"):
            EmbeddedRocksDBStateBackend(options=path)

    @pytest.mark.parametrize("path", ["no_such_module:name", f"{_HERE}no_such_name"])
    def test_what_cannot_be_imported_is_refused_when_the_query_starts(self, path: str) -> None:
        backend = EmbeddedRocksDBStateBackend(options=path)
        with pytest.raises(
            InvalidConfiguration, match=f"'{path}', the options factory of a state backend, cannot be imported"
        ):
            backend.spark_conf()

    def test_what_is_no_factory_is_refused(self) -> None:
        with pytest.raises(InvalidConfiguration, match="is a dict, not a function"):
            rocksdb(options=f"{_HERE}NO_FACTORY")
        with pytest.raises(InvalidConfiguration, match="returned a list, not a mapping"):
            rocksdb(options=lambda: ["blockSizeKB"])


class TestPaths:
    def test_they_are_settings_for_the_start_of_spark(self) -> None:
        backend = EmbeddedRocksDBStateBackend(db_storage_paths=["/ssd", "file:///ssd%202/", "file:/var/db"])
        assert backend.launch_conf() == {"spark.local.dir": "/ssd,/ssd%202,/var/db"}
        assert "spark.local.dir" not in backend.spark_conf()
        assert not EmbeddedRocksDBStateBackend().launch_conf()

    def test_one_may_be_given_as_text(self) -> None:
        assert EmbeddedRocksDBStateBackend(db_storage_paths="/ssd").launch_conf() == {"spark.local.dir": "/ssd"}

    @pytest.mark.parametrize("paths", [[], ["relative"], ["/ssd", "/a,b"], ["s3://bucket/x"], ""])
    def test_others_are_refused(self, paths: list[str] | str) -> None:
        with pytest.raises(InvalidConfiguration, match="db_storage_paths"):
            EmbeddedRocksDBStateBackend(db_storage_paths=paths)


def test_transfer_threads_are_warned_of() -> None:
    (warning,) = EmbeddedRocksDBStateBackend(number_of_transfer_threads=8).warnings()
    assert "number_of_transfer_threads=8" in warning
    assert f"{_STATE}.numStateStoreMaintenanceThreads" in warning
    with pytest.raises(InvalidConfiguration, match="number_of_transfer_threads must be at least 1"):
        EmbeddedRocksDBStateBackend(number_of_transfer_threads=0)


class TestCustom:
    def test_its_class_and_settings_are_the_querys(self) -> None:
        backend = CustomStateBackend(_THEIRS, {f"{_STATE}.minDeltasForSnapshot": "3"}, layout="rocksdb")
        assert (backend.provider, backend.state_layout) == (_THEIRS, StateLayout.ROCKSDB)
        assert backend.spark_conf() == {
            f"{_STATE}.providerClass": _THEIRS,
            f"{_STATE}.minDeltasForSnapshot": "3",
        }

    @pytest.mark.parametrize(
        ("provider", "layout"), [(HDFS_PROVIDER, StateLayout.HDFS), (ROCKSDB_PROVIDER, StateLayout.ROCKSDB)]
    )
    def test_sparks_own_need_no_layout(self, provider: str, layout: StateLayout) -> None:
        assert CustomStateBackend(provider).state_layout is layout
        assert CustomStateBackend(provider, layout=layout.value) == CustomStateBackend(provider)

    def test_files_that_nobody_knows_are_refused(self) -> None:
        with pytest.raises(InvalidConfiguration, match=f"the files of {_THEIRS}") as refused:
            CustomStateBackend(_THEIRS)
        assert "layout='rocksdb'" in refused.value.hint
        with pytest.raises(InvalidConfiguration, match="'hdfs' or 'rocksdb', not 'leveldb'"):
            CustomStateBackend(_THEIRS, layout="leveldb")
        with pytest.raises(InvalidConfiguration, match="they are not those of hdfs"):
            CustomStateBackend(ROCKSDB_PROVIDER, layout="hdfs")

    def test_settings_that_no_query_has_are_refused(self) -> None:
        with pytest.raises(InvalidConfiguration, match=r"spark.local.dir is no setting of a query"):
            CustomStateBackend(_THEIRS, {"spark.local.dir": "/ssd"}, "hdfs")
        with pytest.raises(InvalidConfiguration, match="is provider_class"):
            CustomStateBackend(_THEIRS, {f"{_STATE}.providerClass": HDFS_PROVIDER}, "hdfs")


class TestConfigured:
    @pytest.mark.parametrize(
        ("settings", "backend"),
        [
            ({}, None),
            ({"state.backend.type": "hashmap"}, HashMapStateBackend()),
            ({"state.backend": "rocksdb"}, EmbeddedRocksDBStateBackend()),
            ({"state.backend": "rocksdb", "state.backend.incremental": "false"}, EmbeddedRocksDBStateBackend(False)),
            ({"execution.checkpointing.incremental": "true"}, EmbeddedRocksDBStateBackend(True)),
            ({"state.backend.type": f"{__name__}:OF_THE_USER"}, HashMapStateBackend()),
        ],
    )
    def test_by_flinks_keys(self, settings: dict[str, str], backend: StateBackend | None) -> None:
        assert configured_backend(Configuration(settings)) == backend

    def test_what_is_none_is_refused(self) -> None:
        with pytest.raises(InvalidConfiguration, match=r"is a int\."):
            configured_backend(Configuration({"state.backend.type": f"{__name__}:NO_BACKEND"}))


OF_THE_USER = HashMapStateBackend()
NO_BACKEND = 3
