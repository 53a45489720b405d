"""State backends: how a query keeps its state. Pure values; ``spark/`` puts them into effect.

The names are Flink's. Spark has two state stores of its own: one in the executors' heap, and RocksDB.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, TypeAlias, cast

from dagster_ckpt.config.configuration import Configuration
from dagster_ckpt.config.import_path import load_object
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.paths import local_path, split_location

__all__ = [
    "CHANGELOG_CONF",
    "HDFS_PROVIDER",
    "LAYOUTS",
    "LOCAL_DIRECTORIES_CONF",
    "PROVIDER_CONF",
    "ROCKSDB_PROVIDER",
    "STATE_FORMAT_CONF",
    "CustomStateBackend",
    "EmbeddedRocksDBStateBackend",
    "HashMapStateBackend",
    "PredefinedOptions",
    "StateBackend",
    "StateLayout",
    "configured_backend",
]

_STATE = "spark.sql.streaming.stateStore"
_ROCKSDB = f"{_STATE}.rocksdb."
CHANGELOG_CONF = f"{_ROCKSDB}changelogCheckpointing.enabled"
_MAINTENANCE_THREADS = f"{_STATE}.numStateStoreMaintenanceThreads"
PROVIDER_CONF = f"{_STATE}.providerClass"
STATE_FORMAT_CONF = f"{_STATE}.checkpointFormatVersion"
LOCAL_DIRECTORIES_CONF = "spark.local.dir"
HDFS_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_FLAG = ("true or false", re.compile(r"true|false"))
_WHOLE = ("a whole number", re.compile(r"-?\d+"))
_NOT_NEGATIVE = ("zero or a positive whole number", re.compile(r"\d+"))
_SHARE = ("a number from 0 to 1", re.compile(r"0(\.\d+)?|1(\.0+)?"))
# RocksDB silently treats any other name as "no compression".
_CODEC = ("snappy, z, bzip2, lz4, lz4hc or zstd", re.compile(r"snappy|z|bzip2|lz4|lz4hc|zstd"))
_ONE_OR_TWO = ("1 or 2", re.compile(r"1|2"))

#: Spark's options of RocksDB, each with its allowed values. Spark ignores an unknown option, and fails in the first
#: batch on a wrong value.
_OPTIONS: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "allowFAllocate": _FLAG,
    "blockCacheSizeMB": _NOT_NEGATIVE,
    "blockSizeKB": _NOT_NEGATIVE,
    "boundedMemoryUsage": _FLAG,
    "checkStaleReusedFilesInSnapshot": _FLAG,
    "compactOnCommit": _FLAG,
    "compression": _CODEC,
    "formatVersion": _NOT_NEGATIVE,
    "highPriorityPoolRatio": _SHARE,
    "lockAcquireTimeoutMs": _NOT_NEGATIVE,
    "maxMemoryUsageMB": _NOT_NEGATIVE,
    "maxOpenFiles": _WHOLE,
    "maxWriteBufferNumber": _WHOLE,
    "memoryUpdateIntervalMs": _NOT_NEGATIVE,
    "mergeOperatorVersion": _ONE_OR_TWO,
    "resetStatsOnLoad": _FLAG,
    "trackTotalNumberOfRows": _FLAG,
    "verifyNonEmptyFilesInZip": _FLAG,
    "writeBufferCacheRatio": _SHARE,
    "writeBufferSizeMB": _WHOLE,
}

_SQL = "spark.sql."

OptionsFactory: TypeAlias = Callable[[], Mapping[str, Any]]


class StateLayout(StrEnum):
    """Which files a state store keeps. What each file means is in ``spark/capture/state_files.py``."""

    HDFS = "hdfs"
    ROCKSDB = "rocksdb"


#: The layouts of Spark's own providers, by the class name that Spark records.
LAYOUTS: Mapping[str, StateLayout] = {HDFS_PROVIDER: StateLayout.HDFS, ROCKSDB_PROVIDER: StateLayout.ROCKSDB}


class StateBackend(ABC):
    """How a query keeps its state. Implementations are frozen values."""

    @property
    @abstractmethod
    def provider(self) -> str:
        """The class of the state store provider, as Spark records it in every checkpoint."""

    @property
    @abstractmethod
    def state_layout(self) -> StateLayout:
        """The files that the provider keeps."""

    @abstractmethod
    def spark_conf(self) -> Mapping[str, str]:
        """Settings of the query's session.

        Raises:
            InvalidConfiguration: an option from the options factory cannot be used.
        """

    def launch_conf(self) -> Mapping[str, str]:
        """Settings that take effect only when Spark is started."""
        return {}

    def warnings(self) -> Sequence[str]:
        """A sentence for each setting that Spark does not have."""
        return ()


@dataclass(frozen=True, slots=True)
class HashMapStateBackend(StateBackend):
    """State in the heap of the executors, stored as deltas and snapshots: Spark's ``HDFSBackedStateStoreProvider``."""

    @property
    def provider(self) -> str:
        return HDFS_PROVIDER

    @property
    def state_layout(self) -> StateLayout:
        return StateLayout.HDFS

    def spark_conf(self) -> Mapping[str, str]:
        # This provider knows only state format 1, and fails the query with any other.
        return {PROVIDER_CONF: HDFS_PROVIDER, STATE_FORMAT_CONF: "1"}


class PredefinedOptions(IntEnum):
    """Flink's profiles of RocksDB options, with Flink's numbers, as far as Spark can set them.

    The cache and buffers of ``SPINNING_DISK_OPTIMIZED_HIGH_MEM`` belong to one state store with 256 MB of cache, and
    every partition of every stateful operator has at least one state store. ``boundedMemoryUsage`` and
    ``maxMemoryUsageMB`` in the ``options`` of the backend bound all state stores of an executor together.
    """

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


#: The options of each profile that Spark can set. Level compaction with dynamic level sizes is RocksDB's default now.
_PROFILES: Mapping[PredefinedOptions, Mapping[str, str]] = {
    PredefinedOptions.DEFAULT: {},
    PredefinedOptions.SPINNING_DISK_OPTIMIZED: {"maxOpenFiles": "-1"},
    PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM: {
        "blockCacheSizeMB": "256",
        "blockSizeKB": "128",
        "maxOpenFiles": "-1",
        "maxWriteBufferNumber": "4",
        "writeBufferSizeMB": "64",
    },
    PredefinedOptions.FLASH_SSD_OPTIMIZED: {"maxOpenFiles": "-1"},
}
#: The options of each profile that Spark cannot set.
_UNSETTABLE: Mapping[PredefinedOptions, Sequence[str]] = {
    PredefinedOptions.DEFAULT: (),
    PredefinedOptions.SPINNING_DISK_OPTIMIZED: ("setIncreaseParallelism(4)",),
    PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM: (
        "setIncreaseParallelism(4)",
        "setMinWriteBufferNumberToMerge(3)",
        "setTargetFileSizeBase(256 MB)",
        "setMaxBytesForLevelBase(1 GB)",
    ),
    PredefinedOptions.FLASH_SSD_OPTIMIZED: ("setIncreaseParallelism(4)",),
}


@dataclass(frozen=True, slots=True)
class EmbeddedRocksDBStateBackend(StateBackend):
    """State in RocksDB on the executors' disks: Spark's ``RocksDBStateStoreProvider``.

    Attributes:
        enable_incremental_checkpointing: each batch stores its changes (changelog checkpointing), with a snapshot now
            and then, instead of a snapshot per batch. May be changed from one start to the next.
        predefined_options: a profile of options.
        db_storage_paths: absolute local directories for RocksDB's working files; Spark takes one per state store. They
            become ``spark.local.dir``, so shuffle files go there too. No effect if Spark is already running.
        number_of_transfer_threads: as in Flink; Spark has no such setting, and a warning says so.
        options: Flink's options factory: a callable without arguments that returns Spark's RocksDB options, or the
            import path ``"module:name"`` of this callable. Applied on top of ``predefined_options``. The prefix
            ``spark.sql.streaming.stateStore.rocksdb.`` of keys is optional.

    Raises:
        InvalidConfiguration: a value cannot be used.
    """

    enable_incremental_checkpointing: bool = True
    predefined_options: PredefinedOptions = PredefinedOptions.DEFAULT
    db_storage_paths: Sequence[str] | None = None
    number_of_transfer_threads: int | None = None
    options: OptionsFactory | str | None = None

    def __post_init__(self) -> None:
        if self.db_storage_paths is not None:
            object.__setattr__(self, "db_storage_paths", _directories(self.db_storage_paths))
        threads = self.number_of_transfer_threads
        _require(threads is None or threads >= 1, "number_of_transfer_threads must be at least 1")
        if isinstance(self.options, str):
            module, _, name = self.options.partition(":")
            _require(
                bool(module and name), f"options {self.options!r} is not an import path like 'package.module:name'"
            )

    @property
    def provider(self) -> str:
        return ROCKSDB_PROVIDER

    @property
    def state_layout(self) -> StateLayout:
        return StateLayout.ROCKSDB

    def spark_conf(self) -> Mapping[str, str]:
        options = {**_PROFILES[self.predefined_options], **_checked_options(self._options_factory())}
        return {
            PROVIDER_CONF: ROCKSDB_PROVIDER,
            CHANGELOG_CONF: "true" if self.enable_incremental_checkpointing else "false",
            **{f"{_ROCKSDB}{name}": value for name, value in options.items()},
        }

    def launch_conf(self) -> Mapping[str, str]:
        return {} if self.db_storage_paths is None else {LOCAL_DIRECTORIES_CONF: ",".join(self.db_storage_paths)}

    def warnings(self) -> Sequence[str]:
        found = []
        if unsettable := _UNSETTABLE[self.predefined_options]:
            found.append(
                f"PredefinedOptions.{self.predefined_options.name}: Spark has no setting for {', '.join(unsettable)}; "
                "RocksDB's defaults stay."
            )
        if self.number_of_transfer_threads is not None:
            found.append(
                f"number_of_transfer_threads={self.number_of_transfer_threads}: Spark moves the files of a state store "
                f"one after another and has no setting for it. {_MAINTENANCE_THREADS}, in the configuration Spark is "
                "started with, bounds how many stores upload a snapshot at once."
            )
        return found

    def _options_factory(self) -> Mapping[str, Any]:
        factory = _imported(self.options) if isinstance(self.options, str) else self.options
        return {} if factory is None else factory()


@dataclass(frozen=True, slots=True)
class CustomStateBackend(StateBackend):
    """State in the user's own state store provider, which Spark must find on its class path.

    A capture must know the provider's files. ``layout`` says which of Spark's providers keeps the same files; a
    provider with files of its own cannot be checkpointed.

    Attributes:
        provider_class: the full name of the class.
        conf: settings of the query's session.
        layout: the kind of files, ``"hdfs"`` or ``"rocksdb"``; not needed for Spark's own two classes.

    Raises:
        InvalidConfiguration: the layout is missing, or a setting does not belong to a query.
    """

    provider_class: str
    conf: Mapping[str, str] = field(default_factory=dict, hash=False)
    layout: StateLayout | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "conf", dict(self.conf))
        own = LAYOUTS.get(self.provider_class)
        layout = own if self.layout is None else _layout(self.layout)
        if layout is None or own not in (None, layout):
            raise InvalidConfiguration(
                f"The state backend cannot be used: a capture has to know the files of {self.provider_class}"
                f"{'' if own is None else f', and they are not those of {layout}'}.",
                hint="If it keeps exactly the files of one of Spark's own providers, say which: layout='rocksdb' or "
                "layout='hdfs'. State in other files cannot be checkpointed.",
            )
        object.__setattr__(self, "layout", layout)
        for key in self.conf:
            _require(
                key.startswith(_SQL), f"{key} is no setting of a query; it belongs to SparkSessionResource(conf=...)"
            )
        _require(PROVIDER_CONF not in self.conf, f"{PROVIDER_CONF} is provider_class, and cannot be in conf as well")

    @property
    def provider(self) -> str:
        return self.provider_class

    @property
    def state_layout(self) -> StateLayout:
        return cast("StateLayout", self.layout)  # set by __post_init__

    def spark_conf(self) -> Mapping[str, str]:
        return {PROVIDER_CONF: self.provider_class, **self.conf}


def configured_backend(configuration: Configuration) -> StateBackend | None:
    """The state backend that Flink's keys describe, ``None`` if they describe none.

    Raises:
        InvalidConfiguration: the type is an import path that leads to no state backend.
    """
    incremental = configuration.incremental
    match configuration.state_backend:
        case None if incremental is None:
            return None
        case None | "rocksdb":
            return EmbeddedRocksDBStateBackend(True if incremental is None else incremental)
        case "hashmap":
            return HashMapStateBackend()
        case path:
            found = load_object(path, "the state backend")
            if not isinstance(found, StateBackend):
                raise InvalidConfiguration(
                    f"{path}, the state backend, is a {type(found).__name__}.",
                    hint="Name a state backend of dagster_ckpt.config, such as a CustomStateBackend.",
                )
            return found


def _layout(value: StateLayout | str) -> StateLayout:
    try:
        return StateLayout(value)
    except ValueError:
        known = " or ".join(repr(layout.value) for layout in StateLayout)
        raise InvalidConfiguration(
            f"The state backend cannot be used: layout must be {known}, not {value!r}."
        ) from None


def _directories(paths: Sequence[str]) -> tuple[str, ...]:
    given = [paths] if isinstance(paths, str) else list(paths)
    _require(bool(given), "db_storage_paths is empty; leave it out for Spark's own local directories")
    for text in map(str, given):
        place = split_location(text)
        # Spark separates the directories by commas.
        usable = place.is_local and place.path.startswith("/") and "," not in text
        _require(usable, f"db_storage_paths: {text!r} is not an absolute local path without a comma")
    return tuple(str(local_path(str(path))) for path in given)


def _imported(path: str) -> OptionsFactory:
    factory: OptionsFactory = load_object(path, "the options factory of a state backend")
    _require(callable(factory), f"options {path!r} is a {type(factory).__name__}, not a function")
    return factory


def _checked_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The options by their short names, as text."""
    _require(isinstance(options, Mapping), f"options returned a {type(options).__name__}, not a mapping")
    checked = {}
    for key, value in options.items():
        name = str(key).removeprefix(_ROCKSDB)
        _require(
            name != CHANGELOG_CONF.removeprefix(_ROCKSDB), f"{name} is enable_incremental_checkpointing, not an option"
        )
        if name not in _OPTIONS:
            raise InvalidConfiguration(
                f"The state backend cannot be used: Spark has no RocksDB option {key!r}, and would ignore it.",
                hint=f"It has {', '.join(_OPTIONS)}.",
            )
        what, pattern = _OPTIONS[name]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        _require(pattern.fullmatch(text) is not None, f"RocksDB option {name} must be {what}, not {value!r}")
        checked[name] = text
    return checked


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidConfiguration(f"The state backend cannot be used: {message}.")
