"""PyFlink's descriptions of restart strategies over ours."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dagster_ckpt.config import restart as ours
from dagster_ckpt.datastream import RestartStrategies
from dagster_ckpt.errors import InvalidConfiguration

_TEN_SECONDS = timedelta(seconds=10)


def test_no_restart() -> None:
    strategy = RestartStrategies.no_restart()
    assert isinstance(strategy, RestartStrategies.NoRestartStrategyConfiguration)
    assert strategy.get_description() == "Restart deactivated."
    assert strategy.to_config() == ours.NoRestart()


def test_fall_back_restart() -> None:
    strategy = RestartStrategies.fall_back_restart()
    assert isinstance(strategy, RestartStrategies.FallbackRestartStrategyConfiguration)
    assert strategy.get_description() == "Cluster level default restart strategy"
    assert strategy.to_config() == ours.FallbackRestart()


@pytest.mark.parametrize("delay", [10_000, _TEN_SECONDS])
def test_fixed_delay_restart(delay: int | timedelta) -> None:
    strategy = RestartStrategies.fixed_delay_restart(3, delay)
    assert isinstance(strategy, RestartStrategies.FixedDelayRestartStrategyConfiguration)
    assert strategy.get_restart_attempts() == 3
    assert strategy.get_delay_between_attempts_interval() == _TEN_SECONDS
    assert strategy.get_description() == "Restart with fixed delay (10000 ms). #3 restart attempts."
    assert strategy.to_config() == ours.FixedDelayRestart(3, _TEN_SECONDS)


@pytest.mark.parametrize(("interval", "delay"), [(60_000, 10_000), (timedelta(minutes=1), _TEN_SECONDS)])
def test_failure_rate_restart(interval: int | timedelta, delay: int | timedelta) -> None:
    strategy = RestartStrategies.failure_rate_restart(2, interval, delay)
    assert isinstance(strategy, RestartStrategies.FailureRateRestartStrategyConfiguration)
    assert strategy.get_max_failure_rate() == 2
    assert strategy.get_failure_interval() == timedelta(minutes=1)
    assert strategy.get_delay_between_attempts_interval() == _TEN_SECONDS
    assert strategy.get_description() == (
        "Failure rate restart with maximum of 2 failures within interval 60000 ms and fixed delay 10000 ms."
    )
    assert strategy.to_config() == ours.FailureRateRestart(2, timedelta(minutes=1), _TEN_SECONDS)


@pytest.mark.parametrize("wrong", ["10 s", 10.0, None, True])
def test_a_time_of_another_type(wrong: object) -> None:
    with pytest.raises(TypeError, match="milliseconds"):
        RestartStrategies.fixed_delay_restart(3, wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="failure_interval"):
        RestartStrategies.failure_rate_restart(3, wrong, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="delay_between_attempts_interval"):
        RestartStrategies.failure_rate_restart(3, 1, wrong)  # type: ignore[arg-type]


def test_numbers_out_of_range() -> None:
    with pytest.raises(InvalidConfiguration, match="attempts"):
        RestartStrategies.fixed_delay_restart(-1, 1)
    with pytest.raises(InvalidConfiguration, match="failures"):
        RestartStrategies.failure_rate_restart(0, 1, 1)


def test_equal_are_those_of_one_strategy() -> None:
    strategies = [
        RestartStrategies.no_restart(),
        RestartStrategies.fall_back_restart(),
        RestartStrategies.fixed_delay_restart(3, 10_000),
        RestartStrategies.fixed_delay_restart(3, 10_001),
        RestartStrategies.failure_rate_restart(3, 10_000, 10_000),
    ]
    assert len(set(strategies)) == len(strategies)
    assert RestartStrategies.fixed_delay_restart(3, _TEN_SECONDS) == strategies[2]
    assert hash(RestartStrategies.fixed_delay_restart(3, _TEN_SECONDS)) == hash(strategies[2])
    assert strategies[0] != ours.NoRestart()
    assert "#3 restart attempts" in repr(strategies[2])


@pytest.mark.parametrize("wrong", [10**12 * 4, -(10**12) * 4, 10**30, timedelta(days=36_501)])
def test_a_time_that_nobody_can_wait_for(wrong: int | timedelta) -> None:
    for name, call in (
        ("delay_between_attempts_interval", lambda: RestartStrategies.fixed_delay_restart(3, wrong)),
        ("failure_interval", lambda: RestartStrategies.failure_rate_restart(3, wrong, 1)),
        ("delay_between_attempts_interval", lambda: RestartStrategies.failure_rate_restart(3, 1, wrong)),
    ):
        with pytest.raises(InvalidConfiguration, match=f"{name}: .* is longer than 36500 d, the longest duration"):
            call()
