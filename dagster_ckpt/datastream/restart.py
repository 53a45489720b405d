"""``RestartStrategies`` in PyFlink's spelling: descriptions, which become strategies when the job is built."""

from __future__ import annotations

from datetime import timedelta

from dagster_ckpt import config
from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["RestartStrategies"]


class RestartStrategies:
    """The restart strategies. Times are milliseconds or ``timedelta``."""

    class RestartStrategyConfiguration:
        """A chosen restart strategy. Two configurations with the same strategy are equal."""

        def __init__(self, strategy: config.RestartStrategy) -> None:
            self._strategy = strategy

        def to_config(self) -> config.RestartStrategy:
            """The strategy that a job takes."""
            return self._strategy

        def get_description(self) -> str:
            """The strategy in Flink's words."""
            raise NotImplementedError

        def __eq__(self, other: object) -> bool:
            return (
                isinstance(other, RestartStrategies.RestartStrategyConfiguration) and self._strategy == other._strategy
            )

        def __hash__(self) -> int:
            return hash(self._strategy)

        def __repr__(self) -> str:
            return f"<{type(self).__name__}: {self.get_description()}>"

    class NoRestartStrategyConfiguration(RestartStrategyConfiguration):
        """The job is not restarted."""

        def __init__(self) -> None:
            super().__init__(config.NoRestart())

        def get_description(self) -> str:
            return "Restart deactivated."

    class FallbackRestartStrategyConfiguration(RestartStrategyConfiguration):
        """The configured strategy; else exponential delay with checkpointing, and no restart without checkpointing."""

        def __init__(self) -> None:
            super().__init__(config.FallbackRestart())

        def get_description(self) -> str:
            return "Cluster level default restart strategy"

    class FixedDelayRestartStrategyConfiguration(RestartStrategyConfiguration):
        """At most a fixed number of restarts, each after a fixed delay."""

        _strategy: config.FixedDelayRestart

        def __init__(self, restart_attempts: int, delay_between_attempts_interval: int | timedelta) -> None:
            delay = _time(delay_between_attempts_interval, "delay_between_attempts_interval")
            super().__init__(config.FixedDelayRestart(restart_attempts, delay))

        def get_restart_attempts(self) -> int:
            """How many restarts."""
            return self._strategy.attempts

        def get_delay_between_attempts_interval(self) -> timedelta:
            """Time from a failure to its restart."""
            return self._strategy.delay

        def get_description(self) -> str:
            delay = _milliseconds(self._strategy.delay)
            return f"Restart with fixed delay ({delay}). #{self._strategy.attempts} restart attempts."

    class FailureRateRestartStrategyConfiguration(RestartStrategyConfiguration):
        """Restarts until there are too many failures within an interval."""

        _strategy: config.FailureRateRestart

        def __init__(
            self,
            max_failure_rate: int,
            failure_interval: int | timedelta,
            delay_between_attempts_interval: int | timedelta,
        ) -> None:
            interval = _time(failure_interval, "failure_interval")
            delay = _time(delay_between_attempts_interval, "delay_between_attempts_interval")
            super().__init__(config.FailureRateRestart(max_failure_rate, interval, delay))

        def get_max_failure_rate(self) -> int:
            """Failures within the interval that the job tolerates."""
            return self._strategy.max_failures_per_interval

        def get_failure_interval(self) -> timedelta:
            """The interval over which failures are counted."""
            return self._strategy.interval

        def get_delay_between_attempts_interval(self) -> timedelta:
            """Time from a failure to its restart."""
            return self._strategy.delay

        def get_description(self) -> str:
            interval, delay = _milliseconds(self._strategy.interval), _milliseconds(self._strategy.delay)
            return (
                f"Failure rate restart with maximum of {self._strategy.max_failures_per_interval} failures within "
                f"interval {interval} and fixed delay {delay}."
            )

    @staticmethod
    def no_restart() -> RestartStrategies.NoRestartStrategyConfiguration:
        """The job is not restarted."""
        return RestartStrategies.NoRestartStrategyConfiguration()

    @staticmethod
    def fall_back_restart() -> RestartStrategies.FallbackRestartStrategyConfiguration:
        """The configured strategy restarts the job."""
        return RestartStrategies.FallbackRestartStrategyConfiguration()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: int | timedelta
    ) -> RestartStrategies.FixedDelayRestartStrategyConfiguration:
        """At most ``restart_attempts`` restarts, with a fixed delay before each.

        Raises:
            TypeError: the delay is neither milliseconds nor a ``timedelta``.
            InvalidConfiguration: a number is out of range.
        """
        return RestartStrategies.FixedDelayRestartStrategyConfiguration(restart_attempts, delay_between_attempts)

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: int | timedelta, delay_interval: int | timedelta
    ) -> RestartStrategies.FailureRateRestartStrategyConfiguration:
        """Restarts until more than ``failure_rate`` failures lie within ``failure_interval``, each after a delay.

        Raises:
            TypeError: a time is neither milliseconds nor a ``timedelta``.
            InvalidConfiguration: a number is out of range.
        """
        return RestartStrategies.FailureRateRestartStrategyConfiguration(failure_rate, failure_interval, delay_interval)


def _time(value: object, name: str) -> timedelta:
    try:
        if isinstance(value, timedelta):
            return config.parse_duration(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return config.milliseconds(value)
    except ValueError as error:
        raise InvalidConfiguration(f"{name}: {error}.") from None
    raise TypeError(f"{name} must be milliseconds (an int) or a timedelta, not {type(value).__name__} {value!r}")


def _milliseconds(value: timedelta) -> str:
    return f"{value // timedelta(milliseconds=1)} ms"
