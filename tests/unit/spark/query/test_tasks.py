"""Tasks that go on after the end of what they were started for."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.spark.query.tasks import await_tasks
from tests.helpers.spark.stubborn_tasks import begin_stubborn_task, running_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def group() -> str:
    return str(uuid.uuid4())


def test_it_waits_for_tasks_that_outlive_their_job(spark: SparkSession, group: str) -> None:
    begin_stubborn_task(spark, group)
    assert running_tasks(spark, group) > 0, "the job ended before its tasks"
    assert not await_tasks(spark, group, patience=0.0)
    assert await_tasks(spark, group, patience=240.0)
    assert running_tasks(spark, group) == 0


def test_of_nothing_there_is_nothing_to_wait_for(spark: SparkSession, group: str) -> None:
    assert await_tasks(spark, group, patience=0.0)
