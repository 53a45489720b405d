"""What a user decides: configuration as pure values. Neither Dagster nor PySpark is imported here."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.config.checkpoint_config import (
        HEARTBEAT_INTERVAL,
        HEARTBEAT_TIMEOUT,
        INTERVALS_PER_TIMEOUT,
        LONGEST_HEARTBEAT_TIMEOUT,
        UNLIMITED,
        CheckpointConfig,
        CheckpointingMode,
        ExternalizedCheckpointCleanup,
        JobStatus,
    )
    from dagster_ckpt.config.configuration import Configuration
    from dagster_ckpt.config.import_path import load_object
    from dagster_ckpt.config.live_location import LiveLocationPlace
    from dagster_ckpt.config.option_types import Place
    from dagster_ckpt.config.options import CONFIGURATION_OPTIONS
    from dagster_ckpt.config.quantities import (
        GREATEST_INT,
        duration_of,
        format_duration,
        format_size,
        measured_duration,
        milliseconds,
        parse_duration,
    )
    from dagster_ckpt.config.recovery import (
        EARLIEST,
        LATEST,
        NONE,
        NOW,
        RecoveryClaimMode,
        RestoreRequest,
        StartSources,
        UpgradeMode,
    )
    from dagster_ckpt.config.restart import (
        POISON_BATCH_ATTEMPTS,
        FailureRateRestart,
        FallbackRestart,
        FixedDelayRestart,
        NoRestart,
        RestartDecision,
        RestartStrategies,
        RestartStrategy,
        check_poison_batch_attempts,
    )
    from dagster_ckpt.config.retention import Retained, Retention
    from dagster_ckpt.config.state_backend import (
        CHANGELOG_CONF,
        HDFS_PROVIDER,
        LAYOUTS,
        LOCAL_DIRECTORIES_CONF,
        PROVIDER_CONF,
        ROCKSDB_PROVIDER,
        STATE_FORMAT_CONF,
        CustomStateBackend,
        EmbeddedRocksDBStateBackend,
        HashMapStateBackend,
        PredefinedOptions,
        StateBackend,
        StateLayout,
        configured_backend,
    )
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)


__all__ = [
    "CHANGELOG_CONF",
    "CONFIGURATION_OPTIONS",
    "EARLIEST",
    "GREATEST_INT",
    "HDFS_PROVIDER",
    "HEARTBEAT_INTERVAL",
    "HEARTBEAT_TIMEOUT",
    "INTERVALS_PER_TIMEOUT",
    "LATEST",
    "LAYOUTS",
    "LOCAL_DIRECTORIES_CONF",
    "LONGEST_HEARTBEAT_TIMEOUT",
    "NONE",
    "NOW",
    "POISON_BATCH_ATTEMPTS",
    "PROVIDER_CONF",
    "ROCKSDB_PROVIDER",
    "STATE_FORMAT_CONF",
    "UNLIMITED",
    "CheckpointConfig",
    "CheckpointingMode",
    "Configuration",
    "CustomStateBackend",
    "EmbeddedRocksDBStateBackend",
    "ExternalizedCheckpointCleanup",
    "FailureRateRestart",
    "FallbackRestart",
    "FixedDelayRestart",
    "HashMapStateBackend",
    "JobStatus",
    "LiveLocationPlace",
    "NoRestart",
    "Place",
    "PredefinedOptions",
    "RecoveryClaimMode",
    "RestartDecision",
    "RestartStrategies",
    "RestartStrategy",
    "RestoreRequest",
    "Retained",
    "Retention",
    "StartSources",
    "StateBackend",
    "StateLayout",
    "UpgradeMode",
    "check_poison_batch_attempts",
    "configured_backend",
    "duration_of",
    "format_duration",
    "format_size",
    "load_object",
    "measured_duration",
    "milliseconds",
    "parse_duration",
]
