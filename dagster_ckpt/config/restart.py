"""Restart strategies: pure decisions over the failures recorded so far.

A strategy sees when the job failed and decides whether and when the job may start again. The failures are durable
(``control/failures`` in the storage), so the supervisor inside a run and the sensor outside it share one budget.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from dagster_ckpt.config.quantities import duration_of, format_duration
from dagster_ckpt.errors import InvalidConfiguration

__all__ = [
    "POISON_BATCH_ATTEMPTS",
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FallbackRestart",
    "FixedDelayRestart",
    "NoRestart",
    "RestartDecision",
    "RestartStrategies",
    "RestartStrategy",
    "check_poison_batch_attempts",
]

#: How often one batch may fail with one error before it counts as poison (docs/adr/0009).
POISON_BATCH_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """What a strategy decided after the latest failure.

    Attributes:
        allowed: whether the job may start again.
        at: when the job may start, by the clock of the failures (seconds); meaningless unless ``allowed``.
        attempt: which restart this would be, from 1, counted since the last reset.
        reason: for people.
    """

    allowed: bool
    at: float
    attempt: int
    reason: str


class RestartStrategy(ABC):
    """Decides on a restart. Implementations are frozen values."""

    @abstractmethod
    def decide(self, failures: Sequence[float], *, key: str = "") -> RestartDecision:
        """Decide after ``failures`` (seconds, ascending, at least one); the last is the current failure.

        ``key`` seeds the jitter, so that every tick of a sensor decides alike for one job, and two jobs differ.
        """

    @property
    @abstractmethod
    def longest_delay(self) -> float:
        """The most seconds that a restart waits after its failure."""

    def seconds_left(self, decision: RestartDecision, now: float, waited: float = 0) -> float:
        """How much longer an allowed restart waits, never negative.

        The clock that recorded the failures may have been set back since, or be another clock. So the restart waits
        until the decided moment, or until it has waited for the longest delay, whichever is sooner.

        Args:
            decision: the strategy's.
            now: seconds, by the clock of the failures.
            waited: seconds for which the caller has known the failure, by a monotonic clock.
        """
        return max(min(decision.at - now, self.longest_delay - waited), 0)

    def resolve(self, configured: RestartStrategy | None) -> RestartStrategy:
        """The strategy for a job: this strategy, unless it falls back to the ``configured`` strategy."""
        del configured
        return self


@dataclass(frozen=True, slots=True)
class NoRestart(RestartStrategy):
    """Never restart."""

    def decide(self, failures: Sequence[float], *, key: str = "") -> RestartDecision:
        del key
        return _over(failures, len(failures), "Restart deactivated.")

    @property
    def longest_delay(self) -> float:
        return 0


@dataclass(frozen=True, slots=True)
class FixedDelayRestart(RestartStrategy):
    """Restart at most ``attempts`` times, each ``delay`` after the failure. The count never resets."""

    attempts: int = 1
    delay: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        _require(self.attempts >= 0, "restart attempts must be zero or positive")
        _require(self.delay >= timedelta(), "delay between attempts must be zero or positive")

    @property
    def longest_delay(self) -> float:
        return self.delay.total_seconds()

    def decide(self, failures: Sequence[float], *, key: str = "") -> RestartDecision:
        del key
        attempt = len(failures)
        strategy = f"fixed delay {format_duration(self.delay)}, {self.attempts} attempts"
        if attempt > self.attempts:
            return _over(failures, attempt, f"all {self.attempts} restarts are used up ({strategy})")
        reason = f"restart {attempt} of {self.attempts} ({strategy})"
        return _again(failures[-1] + self.delay.total_seconds(), attempt, reason)


@dataclass(frozen=True, slots=True)
class FailureRateRestart(RestartStrategy):
    """Restart as long as at most ``max_failures_per_interval`` failures lie within any ``interval``."""

    max_failures_per_interval: int = 1
    interval: timedelta = timedelta(minutes=1)
    delay: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        _require(self.max_failures_per_interval >= 1, "failures per interval must be at least 1")
        _require(self.interval > timedelta(), "failure interval must be positive")
        _require(self.delay >= timedelta(), "delay between attempts must be zero or positive")

    @property
    def longest_delay(self) -> float:
        return self.delay.total_seconds()

    def decide(self, failures: Sequence[float], *, key: str = "") -> RestartDecision:
        del key
        now, attempt, limit = failures[-1], len(failures), self.max_failures_per_interval
        recent = [failed_at for failed_at in failures if now - failed_at <= self.interval.total_seconds()]
        strategy = f"failure rate {limit} in {format_duration(self.interval)}, delay {format_duration(self.delay)}"
        if len(recent) > limit:
            many = f"{len(recent)} failures within {format_duration(self.interval)} are too many"
            return _over(failures, attempt, f"{many} ({strategy})")
        reason = f"restart {attempt}, {len(recent)} of {limit} failures in the interval ({strategy})"
        return _again(now + self.delay.total_seconds(), attempt, reason)


@dataclass(frozen=True, slots=True)
class ExponentialDelayRestart(RestartStrategy):
    """Restart with a growing delay; a job that stayed up long enough starts over from the first delay.

    The rules are Flink's, with one deliberate difference: the jitter is applied at the cap too, so that many jobs that
    failed together do not restart in lockstep.
    """

    initial_backoff: timedelta = timedelta(seconds=1)
    max_backoff: timedelta = timedelta(minutes=1)
    backoff_multiplier: float = 1.5
    reset_backoff_threshold: timedelta = timedelta(hours=1)
    jitter_factor: float = 0.1
    attempts_before_reset_backoff: int | None = None

    def __post_init__(self) -> None:
        millisecond = timedelta(milliseconds=1)
        _require(self.initial_backoff >= millisecond, "initial backoff must be at least 1 ms")
        _require(self.initial_backoff <= self.max_backoff, "initial backoff must not exceed max backoff")
        _require(self.backoff_multiplier > 1, "backoff multiplier must be greater than 1")
        _require(self.reset_backoff_threshold >= millisecond, "reset backoff threshold must be at least 1 ms")
        _require(0 <= self.jitter_factor <= 1, "jitter factor must be between 0 and 1")
        attempts = self.attempts_before_reset_backoff
        _require(attempts is None or attempts >= 1, "attempts before reset must be at least 1")

    @property
    def longest_delay(self) -> float:
        return self.max_backoff.total_seconds() * (1 + self.jitter_factor)

    def decide(self, failures: Sequence[float], *, key: str = "") -> RestartDecision:
        attempt, restart_at = 0, float("-inf")
        for failed_at in failures:
            if failed_at <= restart_at:
                continue  # failed again while still waiting for its restart: the same failure
            if failed_at - restart_at >= self.reset_backoff_threshold.total_seconds():
                attempt = 0
            restart_at = failed_at + self._backoff(attempt, f"{key}:{failed_at!r}")
            attempt += 1
        limit = self.attempts_before_reset_backoff
        strategy = f"exponential delay up to {format_duration(self.max_backoff)}"
        if limit is not None and attempt > limit:
            return _over(failures, attempt, f"all {limit} restarts are used up ({strategy})")
        return _again(restart_at, attempt, f"restart {attempt}{'' if limit is None else f' of {limit}'} ({strategy})")

    def _backoff(self, attempt: int, seed: str) -> float:
        initial, cap = self.initial_backoff.total_seconds(), self.max_backoff.total_seconds()
        try:
            backoff = min(initial * self.backoff_multiplier**attempt, cap)
        except OverflowError:
            backoff = cap
        jitter = random.Random(seed).uniform(-1, 1) * self.jitter_factor * backoff
        return max(initial, backoff + jitter)


@dataclass(frozen=True, slots=True)
class FallbackRestart(RestartStrategy):
    """The configured strategy, else exponential delay, the default with checkpoints. Decides nothing itself."""

    def resolve(self, configured: RestartStrategy | None) -> RestartStrategy:
        return ExponentialDelayRestart() if configured is None else configured.resolve(None)

    def decide(self, failures: Sequence[float], *, key: str = "") -> RestartDecision:
        del failures, key
        raise self._unresolved()

    @property
    def longest_delay(self) -> float:
        raise self._unresolved()

    @staticmethod
    def _unresolved() -> InvalidConfiguration:
        return InvalidConfiguration(
            "A restart strategy that falls back to what is configured was asked for a decision.",
            hint="Call resolve(configuration.restart_strategy()) first, and ask what that gives.",
        )


class RestartStrategies:
    """The strategies by their PyFlink names. Times are ``timedelta`` or text such as ``"10 s"``."""

    @staticmethod
    def no_restart() -> NoRestart:
        """The job is not restarted."""
        return NoRestart()

    @staticmethod
    def fall_back_restart() -> FallbackRestart:
        """The strategy of ``restart-strategy.*`` in the configuration, else exponential delay."""
        return FallbackRestart()

    @staticmethod
    def fixed_delay_restart(restart_attempts: int, delay_between_attempts: str | timedelta) -> FixedDelayRestart:
        """At most ``restart_attempts`` restarts, with a fixed delay before each."""
        return FixedDelayRestart(
            restart_attempts, duration_of("delay_between_attempts", delay_between_attempts, "10 s")
        )

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: str | timedelta, delay_interval: str | timedelta
    ) -> FailureRateRestart:
        """Restarts until more than ``failure_rate`` failures lie within ``failure_interval``, each after a delay."""
        return FailureRateRestart(
            failure_rate,
            duration_of("failure_interval", failure_interval, "10 min"),
            duration_of("delay_interval", delay_interval, "10 s"),
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: str | timedelta = "1 s",
        max_backoff: str | timedelta = "1 min",
        backoff_multiplier: float = 1.5,
        reset_backoff_threshold: str | timedelta = "1 h",
        jitter_factor: float = 0.1,
        attempts_before_reset_backoff: int | None = None,
    ) -> ExponentialDelayRestart:
        """Restarts with a delay that grows from ``initial_backoff`` to ``max_backoff``; the default."""
        return ExponentialDelayRestart(
            duration_of("initial_backoff", initial_backoff, "1 s"),
            duration_of("max_backoff", max_backoff, "1 min"),
            backoff_multiplier,
            duration_of("reset_backoff_threshold", reset_backoff_threshold, "1 h"),
            jitter_factor,
            attempts_before_reset_backoff,
        )


def check_poison_batch_attempts(attempts: int | None) -> None:
    """Check that ``attempts`` failures can identify a poison batch; ``None`` means never.

    Raises:
        InvalidConfiguration: ``attempts`` is too small.
    """
    if attempts is not None and attempts < 2:
        raise InvalidConfiguration(
            f"poison_batch_attempts is {attempts}: one failure does not tell poison from bad luck.",
            hint="Set it to 2 or more, or to None; RestartStrategies.no_restart() ends a job with its first failure.",
        )


def _over(failures: Sequence[float], attempt: int, reason: str) -> RestartDecision:
    return RestartDecision(allowed=False, at=failures[-1], attempt=attempt, reason=reason)


def _again(at: float, attempt: int, reason: str) -> RestartDecision:
    return RestartDecision(allowed=True, at=at, attempt=attempt, reason=reason)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidConfiguration(f"The restart strategy cannot be used: {message}.")
