"""Every name PyFlink has for what this package can do is here, documented and exported."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from dagster_ckpt import datastream

#: Methods by PyFlink's names; those of 1.10 and of 2.x together.
_METHODS = {
    "StreamExecutionEnvironment": """
        add_default_kryo_serializer configure disable_operator_chaining enable_checkpointing execute get_buffer_timeout
        get_checkpoint_config get_checkpoint_interval get_checkpointing_mode get_config get_default_local_parallelism
        get_execution_environment get_execution_plan get_max_parallelism get_parallelism get_restart_strategy
        get_state_backend get_stream_time_characteristic is_chaining_enabled register_type
        register_type_with_kryo_serializer set_buffer_timeout set_default_local_parallelism set_max_parallelism
        set_parallelism set_restart_strategy set_state_backend set_stream_time_characteristic""",
    "CheckpointConfig": """
        disable_unaligned_checkpoints enable_externalized_checkpoints enable_unaligned_checkpoints
        get_aligned_checkpoint_timeout get_alignment_timeout get_checkpoint_interval get_checkpoint_storage
        get_checkpoint_timeout get_checkpointing_mode get_externalized_checkpoint_cleanup
        get_externalized_checkpoint_retention get_max_concurrent_checkpoints get_min_pause_between_checkpoints
        get_tolerable_checkpoint_failure_number is_checkpointing_enabled
        is_externalized_checkpoints_enabled is_fail_on_checkpointing_errors is_force_unaligned_checkpoints
        is_prefer_checkpoint_for_recovery is_unaligned_checkpoints_enabled set_aligned_checkpoint_timeout
        set_alignment_timeout set_checkpoint_interval set_checkpoint_storage set_checkpoint_storage_dir
        set_checkpoint_timeout set_checkpointing_mode set_externalized_checkpoint_cleanup
        set_externalized_checkpoint_retention
        set_fail_on_checkpointing_errors set_force_unaligned_checkpoints set_max_concurrent_checkpoints
        set_min_pause_between_checkpoints set_prefer_checkpoint_for_recovery
        set_tolerable_checkpoint_failure_number""",
    "Configuration": """
        add_all add_all_to_dict contains_key get_boolean get_float get_integer get_string key_set remove_config
        set_boolean set_float set_integer set_string to_dict""",
    "Duration": "of_days of_hours of_millis of_minutes of_nanos of_seconds",
    "ExecutionConfig": """
        get_auto_watermark_interval get_max_parallelism get_parallelism set_auto_watermark_interval set_max_parallelism
        set_parallelism""",
    "JobManagerCheckpointStorage": "get_checkpoint_path get_max_state_size get_savepoint_path",
    "FileSystemCheckpointStorage": """
        get_checkpoint_path get_min_file_size_threshold get_savepoint_path get_write_buffer_size""",
    "MemoryStateBackend": "get_max_state_size is_using_asynchronous_snapshots",
    "FsStateBackend": """
        get_checkpoint_path get_min_file_size_threshold get_write_buffer_size is_using_asynchronous_snapshots""",
    "RocksDBStateBackend": """
        disable_ttl_compaction_filter enable_ttl_compaction_filter get_checkpoint_backend get_db_storage_paths
        get_number_of_transfering_threads get_options get_predefined_options is_incremental_checkpoints_enabled
        is_ttl_compaction_filter_enabled set_db_storage_paths set_number_of_transfering_threads set_options
        set_predefined_options""",
    "RestartStrategies": "failure_rate_restart fall_back_restart fixed_delay_restart no_restart",
}
#: What leads from here to the objects underneath, and has no name in Flink.
_BRIDGES = {"add_query", "checkpoint_storage", "configure", "configured", "partitions", "resource", "to_config"}


def test_exports_are_sorted_and_there() -> None:
    assert datastream.__all__ == sorted(datastream.__all__)
    assert all(hasattr(datastream, name) for name in datastream.__all__)


@pytest.mark.parametrize("kind", sorted(_METHODS))
def test_every_method_is_there_under_its_name(kind: str) -> None:
    found = {name for name, _ in _own_methods(getattr(datastream, kind))}
    assert set(_METHODS[kind].split()) <= found


@pytest.mark.parametrize("kind", sorted(_METHODS))
def test_nothing_is_made_up(kind: str) -> None:
    later_names = {"get_number_of_transfer_threads", "set_number_of_transfer_threads"}
    configurations = {name for name in vars(datastream.RestartStrategies) if name.endswith("Configuration")}
    found = {name for name, _ in _own_methods(getattr(datastream, kind))}
    # What a name of the Dagster API or of Python's library has is not made up: PyFlink's names come on top of that.
    others = [base for base in getattr(datastream, kind).__mro__ if not base.__module__.startswith(datastream.__name__)]
    below = {name for base in others for name in vars(base)}
    assert found - set(_METHODS[kind].split()) - later_names - configurations - below <= _BRIDGES


@pytest.mark.parametrize(
    ("kind", "arguments", "parameter"),
    [
        ("StreamExecutionEnvironment", (), "j_stream_execution_environment"),
        ("CheckpointConfig", (), "j_checkpoint_config"),
        ("CheckpointStorage", (), "j_checkpoint_storage"),
        ("JobManagerCheckpointStorage", (), "j_jobmanager_checkpoint_storage"),
        ("FileSystemCheckpointStorage", ("/checkpoints",), "j_filesystem_checkpoint_storage"),
        ("CustomCheckpointStorage", (), "j_custom_checkpoint_storage"),
        ("StateBackend", (), "j_state_backend"),
        ("MemoryStateBackend", (), "j_memory_state_backend"),
        ("FsStateBackend", ("/checkpoints",), "j_fs_state_backend"),
        ("RocksDBStateBackend", ("/checkpoints",), "j_rocks_db_state_backend"),
        ("CustomStateBackend", (), "j_custom_state_backend"),
    ],
)
def test_there_is_no_java_object_to_wrap(kind: str, arguments: tuple[str, ...], parameter: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{parameter}'"):
        getattr(datastream, kind)(*arguments, **{parameter: object()})


@pytest.mark.parametrize(
    ("base", "kinds"),
    [
        ("CheckpointStorage", "CustomCheckpointStorage FileSystemCheckpointStorage JobManagerCheckpointStorage"),
        (
            "StateBackend",
            "CustomStateBackend EmbeddedRocksDBStateBackend FsStateBackend HashMapStateBackend MemoryStateBackend "
            "RocksDBStateBackend",
        ),
    ],
)
def test_every_kind_is_one_of_its_base(base: str, kinds: str) -> None:
    exported = {name: getattr(datastream, name) for name in datastream.__all__}
    found = [name for name, value in exported.items() if issubclass(value, exported[base]) and name != base]
    assert found == kinds.split()


@pytest.mark.parametrize("name", datastream.__all__)
def test_everything_is_documented(name: str) -> None:
    found = getattr(datastream, name)
    assert inspect.getdoc(found)
    for method, value in _own_methods(found):
        assert inspect.getdoc(value), f"{name}.{method}"


def _own_methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in inspect.getmembers(kind):
        if not name.startswith("_") and (callable(value) or isinstance(value, property)):
            yield name, value
