"""What an asset says of the versions of its code, and when the sensor returns to one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dagster_ckpt import CheckpointConfig, checkpointed_streaming_asset
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.upgrades import is_to_return
from dagster_ckpt.spark.job import Versions


def sums(context: Any, spark: SparkSession) -> DataStreamWriter:
    raise AssertionError("no test runs this query")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"upgrade_mode": "statefull", "code_version": "1"}, "upgrade_mode is 'statefull'"),
        ({"upgrade_mode": "savepoint"}, "upgrade_mode has no effect without code_version"),
        ({"upgrade_timeout": "1 h"}, "upgrade_timeout has no effect without code_version"),
        ({"previous": {"1": sums}, "code_version": "2"}, "previous has no effect without upgrade_timeout"),
        ({"upgrade_timeout": "1 hh", "code_version": "1"}, "upgrade_timeout: '1 hh' is not a duration"),
        ({"upgrade_timeout": "1 min", "code_version": "1"}, "upgrade_timeout is 1 min, and the job takes one in 1 min"),
        (
            {"upgrade_timeout": "1 h", "code_version": "1", "config": CheckpointConfig(interval=None)},
            "takes no periodic checkpoints",
        ),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        checkpointed_streaming_asset(**options)


def test_an_asset_keeps_the_versions() -> None:
    asset = checkpointed_streaming_asset(
        code_version="2", upgrade_mode="stateless", upgrade_timeout=timedelta(hours=1), previous={"1": sums}
    )(sums)
    assert asset.versions == Versions("2", "stateless", 3600, {"1": sums})  # type: ignore[arg-type]
    assert checkpointed_streaming_asset()(sums).versions == Versions()


def _failed(taken_back: str | None, returns_to: str | None) -> End:
    return End("FAILED", "of the test", False, "2026-01-01T00:00:00.000+00:00", taken_back, returns_to)


@pytest.mark.parametrize(
    ("versions", "end", "returns"),
    [
        (Versions("1"), None, False),
        (Versions("1"), _failed(None, None), False),
        (Versions(None), _failed(None, None), False),
        (Versions("1"), _failed("2", "1"), True),
        (Versions("2"), _failed("2", "1"), False),
        (Versions("2", previous={"1": sums}), _failed("2", "1"), True),
        (Versions("2", previous={"0": sums}), _failed("2", "1"), False),
        (Versions("3", previous={"1": sums}), _failed("2", "1"), False),
    ],
)
def test_a_job_returns_where_the_code_is(versions: Versions, end: End | None, returns: bool) -> None:
    assert is_to_return(versions, end) is returns
