"""What a user decides: configuration as pure values. Neither Dagster nor PySpark is imported here."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.config.checkpoint_config import (
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
    from dagster_ckpt.config.quantities import format_duration, parse_duration
    from dagster_ckpt.config.recovery import LATEST, NONE, RecoveryClaimMode, RestoreRequest
    from dagster_ckpt.config.restart import (
        POISON_BATCH_ATTEMPTS,
        ExponentialDelayRestart,
        FailureRateRestart,
        FallbackRestart,
        FixedDelayRestart,
        NoRestart,
        RestartDecision,
        RestartStrategies,
        RestartStrategy,
        check_poison_batch_attempts,
    )
    from dagster_ckpt.config.retention import AnyOf, KeepPinned, Retained, RetentionPolicy, decide
    from dagster_ckpt.config.state_backend import (
        CHANGELOG_CONF,
        HDFS_PROVIDER,
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
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "CHANGELOG_CONF": "dagster_ckpt.config.state_backend",
            "CONFIGURATION_OPTIONS": "dagster_ckpt.config.options",
            "HDFS_PROVIDER": "dagster_ckpt.config.state_backend",
            "LATEST": "dagster_ckpt.config.recovery",
            "LOCAL_DIRECTORIES_CONF": "dagster_ckpt.config.state_backend",
            "NONE": "dagster_ckpt.config.recovery",
            "POISON_BATCH_ATTEMPTS": "dagster_ckpt.config.restart",
            "PROVIDER_CONF": "dagster_ckpt.config.state_backend",
            "ROCKSDB_PROVIDER": "dagster_ckpt.config.state_backend",
            "STATE_FORMAT_CONF": "dagster_ckpt.config.state_backend",
            "UNLIMITED": "dagster_ckpt.config.checkpoint_config",
            "AnyOf": "dagster_ckpt.config.retention",
            "CheckpointConfig": "dagster_ckpt.config.checkpoint_config",
            "CheckpointingMode": "dagster_ckpt.config.checkpoint_config",
            "Configuration": "dagster_ckpt.config.configuration",
            "CustomStateBackend": "dagster_ckpt.config.state_backend",
            "EmbeddedRocksDBStateBackend": "dagster_ckpt.config.state_backend",
            "ExponentialDelayRestart": "dagster_ckpt.config.restart",
            "ExternalizedCheckpointCleanup": "dagster_ckpt.config.checkpoint_config",
            "FailureRateRestart": "dagster_ckpt.config.restart",
            "FallbackRestart": "dagster_ckpt.config.restart",
            "FixedDelayRestart": "dagster_ckpt.config.restart",
            "HashMapStateBackend": "dagster_ckpt.config.state_backend",
            "JobStatus": "dagster_ckpt.config.checkpoint_config",
            "KeepPinned": "dagster_ckpt.config.retention",
            "LiveLocationPlace": "dagster_ckpt.config.live_location",
            "NoRestart": "dagster_ckpt.config.restart",
            "Place": "dagster_ckpt.config.option_types",
            "PredefinedOptions": "dagster_ckpt.config.state_backend",
            "RecoveryClaimMode": "dagster_ckpt.config.recovery",
            "RestartDecision": "dagster_ckpt.config.restart",
            "RestartStrategies": "dagster_ckpt.config.restart",
            "RestartStrategy": "dagster_ckpt.config.restart",
            "RestoreRequest": "dagster_ckpt.config.recovery",
            "Retained": "dagster_ckpt.config.retention",
            "RetentionPolicy": "dagster_ckpt.config.retention",
            "StateBackend": "dagster_ckpt.config.state_backend",
            "StateLayout": "dagster_ckpt.config.state_backend",
            "check_poison_batch_attempts": "dagster_ckpt.config.restart",
            "configured_backend": "dagster_ckpt.config.state_backend",
            "decide": "dagster_ckpt.config.retention",
            "format_duration": "dagster_ckpt.config.quantities",
            "load_object": "dagster_ckpt.config.import_path",
            "parse_duration": "dagster_ckpt.config.quantities",
        },
    )


__all__ = [
    "CHANGELOG_CONF",
    "CONFIGURATION_OPTIONS",
    "HDFS_PROVIDER",
    "LATEST",
    "LOCAL_DIRECTORIES_CONF",
    "NONE",
    "POISON_BATCH_ATTEMPTS",
    "PROVIDER_CONF",
    "ROCKSDB_PROVIDER",
    "STATE_FORMAT_CONF",
    "UNLIMITED",
    "AnyOf",
    "CheckpointConfig",
    "CheckpointingMode",
    "Configuration",
    "CustomStateBackend",
    "EmbeddedRocksDBStateBackend",
    "ExponentialDelayRestart",
    "ExternalizedCheckpointCleanup",
    "FailureRateRestart",
    "FallbackRestart",
    "FixedDelayRestart",
    "HashMapStateBackend",
    "JobStatus",
    "KeepPinned",
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
    "RetentionPolicy",
    "StateBackend",
    "StateLayout",
    "check_poison_batch_attempts",
    "configured_backend",
    "decide",
    "format_duration",
    "load_object",
    "parse_duration",
]
