from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.config.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FallbackRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategies,
    RestartStrategy,
)
from dagster_ckpt.errors import InvalidConfiguration

SECOND = timedelta(seconds=1)
gaps = st.lists(st.floats(0, 5000), min_size=1, max_size=40)


def moments(distances: list[float]) -> list[float]:
    total, found = 1000.0, []
    for distance in distances:
        total += distance
        found.append(total)
    return found


def test_no_restart() -> None:
    decision = NoRestart().decide([1.0])
    assert not decision.allowed
    assert decision.reason == "Restart deactivated."
    assert RestartStrategies.no_restart() == NoRestart()


class TestFallBack:
    def test_to_what_is_configured(self) -> None:
        configured = FixedDelayRestart(3, SECOND)
        assert RestartStrategies.fall_back_restart().resolve(configured) == configured

    @pytest.mark.parametrize("configured", [None, FallbackRestart()])
    def test_else_to_the_default_of_a_job_with_checkpoints(self, configured: RestartStrategy | None) -> None:
        assert FallbackRestart().resolve(configured) == ExponentialDelayRestart()

    def test_it_decides_nothing_before_it_is_resolved(self) -> None:
        with pytest.raises(InvalidConfiguration, match="was asked for a decision") as raised:
            FallbackRestart().decide([1.0])
        assert "resolve" in raised.value.hint

    @pytest.mark.parametrize("own", [NoRestart(), FailureRateRestart(), ExponentialDelayRestart()])
    def test_any_other_strategy_stays_what_it_is(self, own: RestartStrategy) -> None:
        assert own.resolve(FixedDelayRestart(3, SECOND)) is own


class TestFixedDelay:
    def test_three_attempts_are_four_runs(self) -> None:
        strategy = RestartStrategies.fixed_delay_restart(3, "10 s")
        failures = [100.0, 200.0, 300.0]
        for attempt in (1, 2, 3):
            decision = strategy.decide(failures[:attempt])
            assert decision.allowed
            assert decision.at == failures[attempt - 1] + 10
            assert decision.attempt == attempt
            assert decision.reason == f"restart {attempt} of 3 (fixed delay 10 s, 3 attempts)"
        last = strategy.decide([*failures, 400.0])
        assert not last.allowed
        assert last.reason == "all 3 restarts are used up (fixed delay 10 s, 3 attempts)"

    def test_it_never_resets(self) -> None:
        assert not FixedDelayRestart(1, SECOND).decide([0.0, 1e9]).allowed

    def test_no_attempt_at_all(self) -> None:
        assert not FixedDelayRestart(0, timedelta()).decide([0.0]).allowed

    @pytest.mark.parametrize(
        ("attempts", "delay"), [(-1, "1 s"), (1, timedelta(seconds=-1)), (1, "soon"), (1, "5"), (1, 5)]
    )
    def test_what_cannot_be_used(self, attempts: int, delay: str | timedelta) -> None:
        with pytest.raises(InvalidConfiguration, match=r"The restart strategy cannot be used|delay_between_attempts: "):
            RestartStrategies.fixed_delay_restart(attempts, delay)

    @given(st.integers(0, 50), st.integers(0, 10**6), gaps)
    def test_allowed_exactly_while_attempts_last(self, attempts: int, delay: int, distances: list[float]) -> None:
        failures = moments(distances)
        decision = FixedDelayRestart(attempts, timedelta(milliseconds=delay)).decide(failures)
        assert decision.allowed is (len(failures) <= attempts)
        if decision.allowed:
            assert decision.at == failures[-1] + delay / 1000


def exact(**options: float | timedelta | None) -> ExponentialDelayRestart:
    """Without jitter."""
    return ExponentialDelayRestart(**{"jitter_factor": 0.0, **options})  # type: ignore[arg-type]


class TestFailureRate:
    def test_the_failure_after_the_allowed_ones_ends_the_job(self) -> None:
        strategy = RestartStrategies.failure_rate_restart(2, "1 min", "5 s")
        first, second, third = (strategy.decide([100.0, 110.0, 120.0][:count]) for count in (1, 2, 3))
        assert (first.allowed, first.at, first.attempt) == (True, 105.0, 1)
        assert (second.allowed, second.at, second.attempt) == (True, 115.0, 2)
        assert second.reason == "restart 2, 2 of 2 failures in the interval (failure rate 2 in 1 min, delay 5 s)"
        assert not third.allowed
        assert third.reason == "3 failures within 1 min are too many (failure rate 2 in 1 min, delay 5 s)"

    def test_old_failures_are_forgotten(self) -> None:
        strategy = FailureRateRestart(1, timedelta(seconds=60), SECOND)
        assert not strategy.decide([0.0, 60.0]).allowed  # Flink: only later than the interval is outside it
        assert strategy.decide([0.0, 60.5]).allowed
        assert not strategy.decide([0.0, 60.5, 100.0]).allowed

    @given(gaps, st.integers(1, 6), st.integers(1, 4000))
    def test_as_flink_decides_with_its_queue(self, distances: list[float], limit: int, interval: int) -> None:
        strategy = FailureRateRestart(limit, timedelta(seconds=interval), SECOND)
        failures, queue = moments(distances), list[float]()
        for count, failed_at in enumerate(failures, start=1):
            queue = [*queue, failed_at][-(limit + 1) :]
            allowed = len(queue) <= limit or failed_at - queue[0] > interval
            assert strategy.decide(failures[:count]).allowed is allowed

    @pytest.mark.parametrize(
        ("rate", "interval", "delay"),
        [(0, "1 s", "1 s"), (1, "0 s", "1 s"), (1, "1 s", timedelta(seconds=-1)), (1, "x", "1 s")],
    )
    def test_what_cannot_be_used(self, rate: int, interval: str, delay: str | timedelta) -> None:
        with pytest.raises(InvalidConfiguration, match=r"The restart strategy cannot be used|failure_interval: "):
            RestartStrategies.failure_rate_restart(rate, interval, delay)


class TestExponentialDelay:
    def test_defaults_are_those_of_flink(self) -> None:
        strategy = RestartStrategies.exponential_delay_restart()
        assert strategy == ExponentialDelayRestart()
        assert strategy == ExponentialDelayRestart(SECOND, timedelta(minutes=1), 1.5, timedelta(hours=1), 0.1, None)

    def test_the_delay_grows_to_the_cap(self) -> None:
        strategy = exact(backoff_multiplier=2.0, max_backoff=timedelta(seconds=10))
        failures = [1000.0 + 100 * number for number in range(7)]
        delays = [strategy.decide(failures[: n + 1]).at - failures[n] for n in range(len(failures))]
        assert delays == [1, 2, 4, 8, 10, 10, 10]

    def test_a_failure_while_waiting_is_the_same_failure(self) -> None:
        strategy = exact(initial_backoff=timedelta(seconds=10))
        alone, merged = strategy.decide([100.0]), strategy.decide([100.0, 105.0, 110.0])
        assert (merged.at, merged.attempt) == (alone.at, alone.attempt) == (110.0, 1)
        assert strategy.decide([100.0, 110.001]).attempt == 2

    def test_long_enough_up_starts_over(self) -> None:
        strategy = exact(reset_backoff_threshold=timedelta(seconds=50), backoff_multiplier=3.0)
        assert strategy.decide([100.0, 151.0 - 0.001]).attempt == 2
        reset = strategy.decide([100.0, 151.0])  # 50 s after the restart at 101
        assert (reset.attempt, reset.at) == (1, 152.0)

    def test_attempts_are_counted_since_the_reset(self) -> None:
        strategy = exact(attempts_before_reset_backoff=2, reset_backoff_threshold=timedelta(seconds=50))
        assert strategy.decide([100.0, 105.0]).reason == "restart 2 of 2 (exponential delay up to 1 min)"
        used_up = strategy.decide([100.0, 105.0, 110.0])
        assert not used_up.allowed
        assert used_up.reason == "all 2 restarts are used up (exponential delay up to 1 min)"
        assert strategy.decide([100.0, 105.0, 200.0]).allowed

    def test_a_thousand_failures_do_not_overflow(self) -> None:
        failures = [1000.0 * number for number in range(1, 3000)]
        assert exact(backoff_multiplier=1e10).decide(failures).at == failures[-1] + 60

    @given(gaps, st.floats(0, 1), st.text(max_size=8))
    def test_bounds_and_determinism(self, distances: list[float], jitter: float, key: str) -> None:
        failures = moments(distances)
        strategy = ExponentialDelayRestart(jitter_factor=jitter)
        decision = strategy.decide(failures, key=key)
        assert decision == strategy.decide(failures, key=key)
        assert decision.allowed
        assert 1 <= decision.attempt <= len(failures)
        assert decision.at >= failures[-1], "not before the failure it answers"
        assert decision.at - failures[-1] <= 60 * (1 + jitter) + 1e-6

    @given(st.lists(st.floats(200, 3000), min_size=1, max_size=20), st.floats(0.01, 1), st.text(max_size=8))
    def test_each_delay_lies_within_its_jitter(self, distances: list[float], jitter: float, key: str) -> None:
        """No merges (gaps exceed any delay) and no resets (they are below an hour)."""
        failures = moments(distances)
        decision = ExponentialDelayRestart(jitter_factor=jitter).decide(failures, key=key)
        expected = min(1.5 ** (len(failures) - 1), 60)
        assert decision.attempt == len(failures)
        delay = decision.at - failures[-1]
        assert max(1, expected * (1 - jitter)) - 1e-6 <= delay <= expected * (1 + jitter) + 1e-6

    def test_two_jobs_that_failed_together_do_not_restart_together(self) -> None:
        strategy = ExponentialDelayRestart()
        failures = [1000.0 * number for number in range(1, 20)]  # at the cap, where Flink has no jitter left
        assert len({strategy.decide(failures, key=f"job {n}").at for n in range(20)}) == 20

    @pytest.mark.parametrize(
        "options",
        [
            {"initial_backoff": timedelta()},
            {"initial_backoff": timedelta(minutes=2)},
            {"backoff_multiplier": 1.0},
            {"reset_backoff_threshold": timedelta()},
            {"jitter_factor": -0.1},
            {"jitter_factor": 1.1},
            {"attempts_before_reset_backoff": 0},
        ],
    )
    def test_what_cannot_be_used(self, options: dict[str, float | timedelta]) -> None:
        with pytest.raises(InvalidConfiguration, match="The restart strategy cannot be used"):
            ExponentialDelayRestart(**options)  # type: ignore[arg-type]

    def test_times_in_every_spelling(self) -> None:
        made = RestartStrategies.exponential_delay_restart("500 ms", "2 min", 2.0, timedelta(hours=2), 0.0, 5)
        assert made == ExponentialDelayRestart(
            timedelta(milliseconds=500), timedelta(minutes=2), 2.0, timedelta(hours=2), 0.0, 5
        )


class TestClocksThatAreSet:
    """What was recorded by a clock that has been set back since, or that is ahead of this one."""

    @pytest.mark.parametrize(
        ("strategy", "longest"),
        [
            (FixedDelayRestart(9, timedelta(seconds=7)), 7),
            (FailureRateRestart(9, timedelta(hours=1), timedelta(seconds=8)), 8),
            (ExponentialDelayRestart(max_backoff=timedelta(seconds=40), jitter_factor=0.25), 50),
        ],
    )
    @given(distances=gaps, ahead=st.floats(-1e6, 1e6), waited=st.floats(0, 100))
    def test_no_restart_waits_for_longer_than_the_longest_delay(
        self, strategy: RestartStrategy, longest: float, distances: list[float], ahead: float, waited: float
    ) -> None:
        assert strategy.longest_delay == longest
        decision = strategy.decide(moments(distances)[:9])
        now = moments(distances)[:9][-1] - ahead
        left = strategy.seconds_left(decision, now, waited)
        assert 0 <= left <= max(longest - waited, 0)
        if now >= decision.at:
            assert left == 0
        elif waited == 0 and decision.at - now <= longest:
            assert left == decision.at - now, "clocks that were not set are gone by"

    def test_what_is_not_allowed_has_no_delay(self) -> None:
        assert NoRestart().longest_delay == 0

    def test_what_falls_back_has_to_be_resolved(self) -> None:
        with pytest.raises(InvalidConfiguration, match="was asked for a decision"):
            _ = FallbackRestart().longest_delay


@pytest.mark.parametrize("strategy", [NoRestart(), FixedDelayRestart(1, SECOND), ExponentialDelayRestart()])
def test_strategies_are_values(strategy: RestartStrategy) -> None:
    assert {strategy: 1}[strategy] == 1
    with pytest.raises((AttributeError, TypeError)):  # the latter for a name it does not have
        strategy.delay = SECOND  # type: ignore[attr-defined]
