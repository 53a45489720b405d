"""``ExecutionConfig``: how many partitions a program has."""

from __future__ import annotations

from dagster_ckpt.datastream.enums import warn
from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["ExecutionConfig"]

_UNSET = -1
_MOST = (1 << 15) - 1


class ExecutionConfig:
    """How many partitions the queries of an environment have.

    Spark has one number where Flink has two: a query shuffles into as many partitions as its state has, and both are
    fixed when the query first starts. In Flink the max parallelism is fixed, so it wins where it is set.
    """

    def __init__(self) -> None:
        self._parallelism = _UNSET
        self._max_parallelism = _UNSET
        self._auto_watermark_interval = 0

    @property
    def partitions(self) -> int | None:
        """Partitions of a query and of its state; ``None`` for Spark's configuration.

        Raises:
            InvalidConfiguration: the parallelism is greater than the max parallelism.
        """
        if _UNSET in {self._parallelism, self._max_parallelism}:
            return None if self._parallelism == self._max_parallelism else max(self._parallelism, self._max_parallelism)
        if self._parallelism > self._max_parallelism:
            raise InvalidConfiguration(
                f"The parallelism of {self._parallelism} is greater than the max parallelism of "
                f"{self._max_parallelism}.",
                hint="Leave set_parallelism out: Spark has one number for both.",
            )
        return self._max_parallelism

    def get_parallelism(self) -> int:
        """The value given to :meth:`set_parallelism`; by default -1: Spark's ``spark.sql.shuffle.partitions``."""
        return self._parallelism

    def set_parallelism(self, parallelism: int) -> ExecutionConfig:
        """Set how many partitions a query and its state have, unless the max parallelism is set.

        Raises:
            InvalidConfiguration: ``parallelism`` is neither positive nor -1, which unsets it.
        """
        if parallelism < 1 and parallelism != _UNSET:
            raise InvalidConfiguration(f"The parallelism must be at least 1, or -1 for Spark's own, not {parallelism}.")
        self._parallelism = parallelism
        self._warn_of_two()
        return self

    def get_max_parallelism(self) -> int:
        """The value given to :meth:`set_max_parallelism`; by default -1."""
        return self._max_parallelism

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        """Set how many partitions a query and its state have: Flink's key groups.

        Raises:
            InvalidConfiguration: ``max_parallelism`` is not between 1 and 32767.
        """
        if not 0 < max_parallelism <= _MOST:
            raise InvalidConfiguration(f"The max parallelism must be between 1 and {_MOST}, not {max_parallelism}.")
        self._max_parallelism = max_parallelism
        self._warn_of_two()
        return self

    def get_auto_watermark_interval(self) -> int:
        """The milliseconds given to :meth:`set_auto_watermark_interval`; by default 0."""
        return self._auto_watermark_interval

    def set_auto_watermark_interval(self, interval: int) -> ExecutionConfig:
        """Has no effect on a query, and warns."""
        warn(
            "set_auto_watermark_interval changes nothing: Spark moves the watermark on once a batch. The time between "
            "two batches is set by set_buffer_timeout, or by the query's trigger."
        )
        self._auto_watermark_interval = interval
        return self

    def _warn_of_two(self) -> None:
        if _UNSET not in {self._parallelism, self._max_parallelism} and self._parallelism < self._max_parallelism:
            warn(
                f"The parallelism of {self._parallelism} has no effect beside the max parallelism of "
                f"{self._max_parallelism}: Spark has one number for both, and works on as many of the partitions at "
                "once as it has cores."
            )
