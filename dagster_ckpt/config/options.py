"""Flink's keys for checkpoints, restarts and recovery, and what each of them does here: one table of data.

Each key is taken (it has an effect), warned about (Spark cannot do it, and ignoring the key is safe), or refused
(ignoring the key would not do what was asked for). :mod:`dagster_ckpt.config.configuration` reads settings by this
table.
"""

from __future__ import annotations

from dagster_ckpt.config.checkpoint_config import CheckpointingMode, ExternalizedCheckpointCleanup
from dagster_ckpt.config.option_types import (
    BOOLEAN,
    DURATION,
    NUMBER,
    PATH,
    SIZE,
    WHOLE,
    Bounds,
    ConfigurationOption,
    Handling,
    Place,
    enumeration,
    named_or_imported,
)
from dagster_ckpt.config.recovery_options import RECOVERY_OPTIONS

__all__ = ["CONFIGURATION_OPTIONS"]


_C = "execution.checkpointing."
_TAKEN, _WARNED, _REFUSED = Handling.TAKEN, Handling.WARNED, Handling.REFUSED
_PACKED = "Small files that recur are always packed together, and a pack is shared by the checkpoints that need it."
_NO_CHANNELS = "A checkpoint has no channel state: what is in flight is the plan of the next batch, a few bytes."

#: Every known key.
CONFIGURATION_OPTIONS: tuple[ConfigurationOption, ...] = (
    # When checkpoints are taken.
    ConfigurationOption(
        f"{_C}interval",
        DURATION,
        _TAKEN,
        "Time between the starts of two checkpoints, at least 10 ms. Without it that of CheckpointConfig is used; its "
        "`None` is for no periodic checkpoints.",
        sets="interval",
    ),
    ConfigurationOption(
        f"{_C}interval-during-backlog",
        DURATION,
        _WARNED,
        "Spark's sources do not report a backlog; checkpoints are taken at the usual interval.",
    ),
    ConfigurationOption(
        f"{_C}mode",
        enumeration(CheckpointingMode),
        _TAKEN,
        "What a restore promises: exact or refused, or every record at least once.",
        sets="mode",
    ),
    ConfigurationOption(
        f"{_C}timeout",
        DURATION,
        _TAKEN,
        "An attempt older than this, counted from its capture, is discarded and counts as failed; at least 10 ms.",
        sets="timeout",
    ),
    ConfigurationOption(
        f"{_C}min-pause",
        DURATION,
        _TAKEN,
        "Least time between the end of one checkpoint and the start of the next, at most 365 days; also the least "
        "interval.",
        sets="min_pause",
    ),
    ConfigurationOption(
        f"{_C}max-concurrent-checkpoints",
        WHOLE,
        _TAKEN,
        "Attempts that may be in progress at once, at least 1; 1 if unaligned.",
        sets="max_concurrent_checkpoints",
    ),
    ConfigurationOption(
        f"{_C}tolerable-failed-checkpoints",
        WHOLE,
        _TAKEN,
        "Consecutive failures that are borne; one more fails the job over. 2147483647 bears all.",
        sets="tolerable_failed_checkpoints",
    ),
    ConfigurationOption(
        f"{_C}checkpoints-after-tasks-finish",
        BOOLEAN,
        _WARNED,
        "A query that ends always gets a last checkpoint, so that the next run goes on from its end.",
        old=(f"{_C}checkpoints-after-tasks-finish.enabled",),
        as_here=True,
    ),
    ConfigurationOption(
        "pipeline.sources.pause-until-first-checkpoint",
        BOOLEAN,
        _WARNED,
        "Spark's sources cannot be paused. What they read before the first checkpoint is read again after a failure.",
        as_here=False,
    ),
    # Alignment.
    ConfigurationOption(
        f"{_C}unaligned.enabled",
        BOOLEAN,
        _TAKEN,
        "Do not wait for the batch in flight: capture the last committed batch and the plan of the next. Under "
        "EXACTLY_ONCE only.",
        old=(f"{_C}unaligned",),
        sets="unaligned",
    ),
    ConfigurationOption(
        f"{_C}aligned-checkpoint-timeout",
        DURATION,
        _TAKEN,
        "An attempt begins aligned and becomes unaligned when it has waited this long for its batch. Unlike in Flink, "
        "also where unaligned.enabled is not set. 0: at once if unaligned, else never.",
        old=(f"{_C}alignment-timeout",),
        sets="aligned_checkpoint_timeout",
    ),
    ConfigurationOption(
        f"{_C}unaligned.forced",
        BOOLEAN,
        _WARNED,
        "It lifts refusals for iterations and custom partitioners, which Spark's queries do not have.",
        as_here=False,
    ),
    ConfigurationOption(
        f"{_C}unaligned.max-subtasks-per-channel-state-file",
        WHOLE,
        _WARNED,
        _NO_CHANNELS,
    ),
    ConfigurationOption(
        f"{_C}unaligned.interruptible-timers.enabled",
        BOOLEAN,
        _WARNED,
        "A checkpoint falls between two batches or beside one, never among the timers of one.",
        as_here=False,
    ),
    ConfigurationOption(
        f"{_C}unaligned.recover-output-on-downstream.enabled",
        BOOLEAN,
        _WARNED,
        _NO_CHANNELS,
        as_here=False,
    ),
    ConfigurationOption(
        f"{_C}unaligned.during-recovery.enabled",
        BOOLEAN,
        _WARNED,
        "A query is restored before it starts, so that no checkpoint can fall into its recovery.",
        as_here=False,
    ),
    # The lease.
    ConfigurationOption(
        "heartbeat.interval",
        DURATION,
        _TAKEN,
        "Time between two heartbeats of a run, at most a third of heartbeat.timeout; 2 s by default, in Flink 10 s.",
        sets="heartbeat_interval",
    ),
    ConfigurationOption(
        "heartbeat.timeout",
        DURATION,
        _TAKEN,
        "After so long without a heartbeat a run counts as dead on other hosts, 3 s to 1 h; 30 s by default, in Flink "
        "50 s. The query pauses before that, until a heartbeat is taken.",
        sets="heartbeat_timeout",
    ),
    ConfigurationOption(
        "heartbeat.rpc-failure-threshold",
        WHOLE,
        _WARNED,
        "A heartbeat that the storage refuses is tried again at the next interval until heartbeat.timeout is over.",
    ),
    # What is kept.
    ConfigurationOption(
        f"{_C}externalized-checkpoint-retention",
        enumeration(ExternalizedCheckpointCleanup),
        _TAKEN,
        "What becomes of the checkpoints when the job is canceled or fails. What becomes of them when it finishes is "
        "said by retain_on_success of CheckpointConfig; Flink deletes them.",
        sets="cleanup",
    ),
    ConfigurationOption(
        f"{_C}num-retained",
        WHOLE,
        _TAKEN,
        "Completed checkpoints kept; older ones are deleted. 0 or less means 1, with a warning.",
        old=("state.checkpoints.num-retained",),
        sets="num_retained",
        bounds=Bounds(least=1, most=None, otherwise=1),
    ),
    ConfigurationOption(
        f"{_C}cleaner.parallel-mode",
        BOOLEAN,
        _WARNED,
        "A checkpoint is always deleted in order, its _metadata first, so that nothing half deleted can be restored.",
        old=("state.checkpoint.cleaner.parallel-mode",),
        as_here=False,
    ),
    # Where checkpoints go.
    ConfigurationOption(
        f"{_C}storage",
        named_or_imported("jobmanager", "filesystem"),
        _TAKEN,
        "Which storage `configured_storage` makes: `JobManagerCheckpointStorage`, `FileSystemCheckpointStorage`, or a "
        "`CustomCheckpointStorage` with this factory.",
        old=("state.checkpoint-storage",),
        place=Place.STORAGE,
    ),
    ConfigurationOption(
        f"{_C}dir",
        PATH,
        _TAKEN,
        "Directory for checkpoints: `checkpoint_path` of the storage.",
        old=("state.checkpoints.dir", "state.backend.fs.checkpointdir"),
        place=Place.STORAGE,
    ),
    ConfigurationOption(
        f"{_C}savepoint-dir",
        PATH,
        _TAKEN,
        "Directory for savepoints that are asked for without one: `savepoint_path` of the storage.",
        old=("state.savepoints.dir", "savepoints.state.backend.fs.dir"),
        place=Place.STORAGE,
    ),
    ConfigurationOption(
        f"{_C}create-subdir",
        BOOLEAN,
        _REFUSED,
        "Each lineage of a job has a directory of its own, without which two of them would hit one another's files.",
        old=("state.checkpoints.create-subdir",),
        as_here=True,
    ),
    ConfigurationOption(
        f"{_C}data-inline-threshold",
        SIZE,
        _TAKEN,
        "Files up to this size are small: kept in _metadata or packed together. `file_state_size_threshold` of the "
        "storage. More than 1 MiB means 20 KiB, with a warning.",
        old=("state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold"),
        place=Place.STORAGE,
        bounds=Bounds(least=0, most=1 << 20, otherwise=20 << 10),
    ),
    ConfigurationOption(
        f"{_C}write-buffer-size",
        SIZE,
        _TAKEN,
        "Bytes that are copied at a time, at least the inline threshold: `write_buffer_size` of the storage.",
        old=("state.storage.fs.write-buffer-size", "state.backend.fs.write-buffer-size"),
        place=Place.STORAGE,
    ),
    ConfigurationOption(
        f"{_C}file-merging.enabled",
        BOOLEAN,
        _WARNED,
        _PACKED,
        as_here=True,
    ),
    ConfigurationOption(
        f"{_C}file-merging.across-checkpoint-boundary",
        BOOLEAN,
        _WARNED,
        "A pack holds files of one checkpoint; later ones refer to it as long as the files stay what they are.",
        as_here=False,
    ),
    ConfigurationOption(
        f"{_C}file-merging.max-file-size",
        SIZE,
        _WARNED,
        "A pack has at most 4 MiB.",
        as_here=4 << 20,
    ),
    ConfigurationOption(f"{_C}file-merging.pool-blocking", BOOLEAN, _WARNED, _PACKED),
    ConfigurationOption(f"{_C}file-merging.max-subtasks-per-file", WHOLE, _WARNED, _PACKED),
    ConfigurationOption(
        f"{_C}file-merging.max-space-amplification",
        NUMBER,
        _WARNED,
        "A pack stays as long as a retained checkpoint needs a part of it; it is not written again.",
    ),
    ConfigurationOption(
        f"{_C}local-backup.enabled",
        BOOLEAN,
        _WARNED,
        "There is no second copy. What a dead run left on its host is captured from its live checkpointLocation "
        "(salvage) whenever it is still there.",
        old=("state.backend.local-recovery",),
        as_here=False,
    ),
    ConfigurationOption(
        f"{_C}local-backup.dirs",
        PATH,
        _WARNED,
        "There is no second copy. Live checkpointLocations lie in `working_directory` of the storage.",
        old=("taskmanager.state.local.root-dirs",),
    ),
    # The state of the query.
    ConfigurationOption(
        "state.backend.type",
        named_or_imported("hashmap", "rocksdb"),
        _TAKEN,
        "Where a query keeps its state: Spark's state store provider.",
        old=("state.backend",),
        place=Place.STATE,
    ),
    ConfigurationOption(
        f"{_C}incremental",
        BOOLEAN,
        _TAKEN,
        "Whether the state store writes what changed in a batch instead of all of its state. Checkpoints share "
        "unchanged files in any case.",
        old=("state.backend.incremental",),
        place=Place.STATE,
    ),
    ConfigurationOption(
        "state.backend.async",
        BOOLEAN,
        _WARNED,
        "Files are always copied beside the query, which waits for a hard link of each and not for a copy.",
        as_here=True,
    ),
    ConfigurationOption(
        "state.changelog.enabled",
        BOOLEAN,
        _WARNED,
        "There is no second log of changes beside the state store. What the state store writes in a batch is said by "
        f"{_C}incremental.",
        old=("state.backend.changelog.enabled",),
        as_here=False,
    ),
    *RECOVERY_OPTIONS,
    # The program around the query: for an environment of `dagster_ckpt.datastream`, not for an asset.
    ConfigurationOption(
        "parallelism.default",
        WHOLE,
        _TAKEN,
        "How many partitions a query and its state have, as `set_parallelism`. For an asset it is "
        "`spark.sql.shuffle.partitions` of the Spark session.",
        place=Place.PROGRAM,
    ),
    ConfigurationOption(
        "pipeline.max-parallelism",
        WHOLE,
        _TAKEN,
        "How many partitions a query and its state have, as `set_max_parallelism`. For an asset it is "
        "`spark.sql.shuffle.partitions` of the Spark session.",
        place=Place.PROGRAM,
    ),
    ConfigurationOption(
        "execution.buffer-timeout.interval",
        DURATION,
        _TAKEN,
        "Time between the starts of two batches, 0 for no pause, as `set_buffer_timeout`: the trigger of the query. "
        "The query of an asset sets its trigger itself.",
        old=("execution.buffer-timeout",),
        place=Place.PROGRAM,
    ),
    ConfigurationOption(
        "execution.buffer-timeout.enabled",
        BOOLEAN,
        _TAKEN,
        "With `false` the query keeps its own trigger, whatever the interval is.",
        place=Place.PROGRAM,
    ),
    ConfigurationOption(
        "pipeline.operator-chaining.enabled",
        BOOLEAN,
        _TAKEN,
        "Whether Spark generates common code for the operators of a stage. For an asset it is "
        "`spark.sql.codegen.wholeStage` of the Spark session.",
        old=("pipeline.operator-chaining",),
        place=Place.PROGRAM,
    ),
)
