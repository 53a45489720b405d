"""``CheckpointConfig`` in PyFlink's spelling: getters and setters, times in milliseconds, Flink's defaults."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from dagster_ckpt import config
from dagster_ckpt.config import Configuration
from dagster_ckpt.datastream.checkpoint_storage import CheckpointStorage, FileSystemCheckpointStorage
from dagster_ckpt.datastream.common import Duration
from dagster_ckpt.datastream.enums import CheckpointingMode, ExternalizedCheckpointRetention, member, warn

__all__ = ["CheckpointConfig"]

#: Flink's defaults that differ from the safe defaults of ``dagster_ckpt.config``.
_FLINK: dict[str, Any] = {
    "interval": None,
    "tolerable_failed_checkpoints": 0,
    "cleanup": config.ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS,
    "retain_on_success": False,
    "num_retained": 1,
}


class CheckpointConfig:
    """The choices about checkpoints.

    Getters return the set value, also while checkpointing is off. A setter refuses an invalid value
    (``InvalidConfiguration``); :meth:`to_config` refuses values that exclude each other when the job is built.
    """

    DEFAULT_MODE = CheckpointingMode.EXACTLY_ONCE
    DEFAULT_TIMEOUT = 600_000
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS = 0
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS = 1

    def __init__(self) -> None:
        self._values: dict[str, Any] = dict(config.CheckpointConfig(**_FLINK))
        self._chosen: set[str] = set()
        self._storage: CheckpointStorage | None = None
        self._force_unaligned = False

    def to_config(self) -> config.CheckpointConfig:
        """The configuration that a job takes.

        Raises:
            InvalidConfiguration: two values exclude each other.
        """
        return config.CheckpointConfig(**self._values)

    def configure(self, configuration: Configuration) -> None:
        """Take over the settings by Flink's string keys.

        Raises:
            InvalidConfiguration: a value is out of range, or two values exclude each other.
        """
        for name, value in configuration.checkpoint_config(self.to_config()):
            if value != self._values[name]:
                self._chosen.add(name)
                self._values[name] = value
        if configuration.checkpoint_storage is not None or configuration.checkpoints_directory is not None:
            self._storage = None  # the keys say where, over an earlier call of set_checkpoint_storage

    def is_checkpointing_enabled(self) -> bool:
        """Whether an interval is set. Without an interval there are no periodic checkpoints; savepoints still work."""
        return self._values["interval"] is not None

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """What a restore promises."""
        return CheckpointingMode[self._values["mode"].name]

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        """Set what a restore promises: ``EXACTLY_ONCE`` is exact or refused, ``AT_LEAST_ONCE`` admits every sink."""
        return self._set("mode", member(CheckpointingMode, checkpointing_mode).name)

    def get_checkpoint_interval(self) -> int:
        """Milliseconds between the starts of two checkpoints; -1 while checkpointing is off."""
        return self._milliseconds("interval") if self.is_checkpointing_enabled() else -1

    def set_checkpoint_interval(self, checkpoint_interval: int) -> CheckpointConfig:
        """Set the milliseconds between the starts of two checkpoints; at least 10."""
        return self._set_time("interval", checkpoint_interval)

    def get_checkpoint_timeout(self) -> int:
        """Milliseconds after which a checkpoint attempt is discarded."""
        return self._milliseconds("timeout")

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> CheckpointConfig:
        """Set the milliseconds after which a checkpoint attempt is discarded; at least 10."""
        return self._set_time("timeout", checkpoint_timeout)

    def get_min_pause_between_checkpoints(self) -> int:
        """Least milliseconds between the end of one checkpoint and the start of the next."""
        return self._milliseconds("min_pause")

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> CheckpointConfig:
        """Set the least milliseconds between the end of one checkpoint and the start of the next."""
        return self._set_time("min_pause", min_pause_between_checkpoints)

    def get_max_concurrent_checkpoints(self) -> int:
        """Checkpoint attempts that may be in progress at once."""
        return int(self._values["max_concurrent_checkpoints"])

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        """Set how many checkpoint attempts may be in progress at once; at least 1."""
        return self._set("max_concurrent_checkpoints", max_concurrent_checkpoints)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """Consecutive failed checkpoint attempts that the job tolerates; one more fails the job over."""
        tolerable: int | None = self._values["tolerable_failed_checkpoints"]
        return config.UNLIMITED if tolerable is None else tolerable

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> CheckpointConfig:
        """Set how many failed checkpoint attempts in a row the job tolerates; 2147483647 for any number."""
        return self._set("tolerable_failed_checkpoints", tolerable_checkpoint_failure_number)

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Whether the first failed checkpoint attempt fails the job over."""
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> CheckpointConfig:
        """The older setter: ``True`` tolerates no failed checkpoint attempt, ``False`` any number of them.

        Once a tolerable number is set, this method only warns, as in Flink up to 1.20.
        """
        name = "tolerable_failed_checkpoints"
        if name in self._chosen:
            warn(
                "set_fail_on_checkpointing_errors changes nothing: the tolerable number of failed checkpoints is set "
                f"to {self.get_tolerable_checkpoint_failure_number()} already."
            )
        else:
            # A later call of this method may override this value.
            self._values[name] = 0 if fail_on_checkpointing_errors else config.UNLIMITED
        return self

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Do not wait for the running batch: capture the last committed batch and the planned batch."""
        return self._set("unaligned", enabled)

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        """Wait for the running batch."""
        return self.enable_unaligned_checkpoints(enabled=False)

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether checkpoints do not wait for the running batch."""
        return bool(self._values["unaligned"])

    def set_force_unaligned_checkpoints(self, force_unaligned_checkpoints: bool = True) -> CheckpointConfig:
        """Has no effect on a query; ``True`` warns."""
        if force_unaligned_checkpoints:
            warn(
                "set_force_unaligned_checkpoints changes nothing: Spark's queries have none of the iterations and "
                "custom partitioners that make Flink refuse unaligned checkpoints."
            )
        self._force_unaligned = force_unaligned_checkpoints
        return self

    def is_force_unaligned_checkpoints(self) -> bool:
        """The value given to :meth:`set_force_unaligned_checkpoints`."""
        return self._force_unaligned

    def set_aligned_checkpoint_timeout(self, aligned_checkpoint_timeout: timedelta | int) -> CheckpointConfig:
        """Set how long a checkpoint attempt waits for its batch until it becomes unaligned; ``int``: milliseconds."""
        return self._set_time("aligned_checkpoint_timeout", aligned_checkpoint_timeout)

    def get_aligned_checkpoint_timeout(self) -> Duration:
        """How long a checkpoint attempt waits for its batch until it becomes unaligned."""
        timeout: timedelta = self._values["aligned_checkpoint_timeout"]
        return Duration(timeout.days, timeout.seconds, timeout.microseconds)

    def set_alignment_timeout(self, alignment_timeout: timedelta | int) -> CheckpointConfig:
        """The older name of :meth:`set_aligned_checkpoint_timeout`."""
        return self.set_aligned_checkpoint_timeout(alignment_timeout)

    def get_alignment_timeout(self) -> Duration:
        """The older name of :meth:`get_aligned_checkpoint_timeout`."""
        return self.get_aligned_checkpoint_timeout()

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        """Set whether checkpoints stay when the job is canceled or fails."""
        return self._set("cleanup", member(ExternalizedCheckpointRetention, retention_mode).name)

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention | None:
        """Whether checkpoints stay when the job ends; ``None`` if unset: then they are deleted, as in Flink."""
        return ExternalizedCheckpointRetention[self._values["cleanup"].name] if "cleanup" in self._chosen else None

    def enable_externalized_checkpoints(self, cleanup_mode: ExternalizedCheckpointRetention) -> CheckpointConfig:
        """The oldest name of :meth:`set_externalized_checkpoint_retention`, deprecated; Flink 2 does not have it."""
        return self.set_externalized_checkpoint_retention(cleanup_mode)

    def set_externalized_checkpoint_cleanup(self, cleanup_mode: ExternalizedCheckpointRetention) -> CheckpointConfig:
        """An older name of :meth:`set_externalized_checkpoint_retention`, deprecated; Flink 2 does not have it."""
        return self.set_externalized_checkpoint_retention(cleanup_mode)

    def get_externalized_checkpoint_cleanup(self) -> ExternalizedCheckpointRetention | None:
        """The older name of :meth:`get_externalized_checkpoint_retention`, deprecated; Flink 2 does not have it."""
        return self.get_externalized_checkpoint_retention()

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Whether checkpoints outlive a job that is canceled or fails."""
        return self.get_externalized_checkpoint_retention() not in {
            None,
            ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS,
        }

    def set_prefer_checkpoint_for_recovery(self, prefer_checkpoint_for_recovery: bool) -> CheckpointConfig:
        """Set whether a recovery continues from checkpoints only: the default, as in Flink since 1.15.

        With ``False`` a recovery continues from the job's newest savepoint if the savepoint is newer than every
        checkpoint. The savepoint still belongs to the user; missing savepoints are skipped.
        """
        return self._set("prefer_checkpoint_for_recovery", prefer_checkpoint_for_recovery)

    def is_prefer_checkpoint_for_recovery(self) -> bool:
        """Whether a recovery continues from checkpoints only."""
        return bool(self._values["prefer_checkpoint_for_recovery"])

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> CheckpointConfig:
        """Set where the checkpoints go.

        Raises:
            TypeError: ``storage`` is not a storage of this package.
        """
        if not isinstance(storage, CheckpointStorage):
            raise TypeError(
                f"{storage!r} is no dagster_ckpt.datastream.CheckpointStorage; a storage resource is wrapped by "
                "CustomCheckpointStorage(resource), and a path is set by set_checkpoint_storage_dir(path)."
            )
        self._storage = storage
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        """Keep checkpoints as files below a directory; short for a :class:`FileSystemCheckpointStorage`."""
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoint_path))

    def get_checkpoint_storage(self) -> CheckpointStorage | None:
        """Where the checkpoints go, ``None`` if unset."""
        return self._storage

    def _set(self, name: str, value: Any) -> CheckpointConfig:
        # Check the value among defaults, so that only the value itself can be wrong.
        self._values[name] = getattr(config.CheckpointConfig(**{name: value}), name)
        self._chosen.add(name)
        return self

    def _set_time(self, name: str, value: int | timedelta) -> CheckpointConfig:
        if isinstance(value, int) and not isinstance(value, bool):  # a number as in PyFlink
            return self._set(name, f"{value} ms" if value >= 0 else -timedelta.resolution)
        return self._set(name, value)

    def _milliseconds(self, name: str) -> int:
        duration: timedelta = self._values[name]
        return duration // timedelta(milliseconds=1)
