"""Spark as a Dagster resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import ConfigDict, Field

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkSessionResource"]


class SparkSessionResource(dg.ConfigurableResource["SparkSessionResource"]):
    """How to start Spark. The session itself is started by the job, on the thread that drives it.

    .. code-block:: python

        spark = SparkSessionResource(master="local[4]", conf={"spark.driver.memory": "4g"})
        spark = SparkSessionResource(master="spark://host:7077")
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    master: str = Field(default="local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark configuration, key to value.")
    app_name: str | None = Field(default=None, description="Application name; the job's name by default.")

    def session(self, job_name: str, required: Mapping[str, str] | None = None) -> SparkSession:
        """Start Spark, or join the session of this process.

        Args:
            job_name: of the job that needs Spark.
            required: settings that win over ``conf``; most of them have an effect only when Spark is started here.

        Raises:
            JavaNotFound: no usable Java.
        """
        from dagster_ckpt.spark import start_session  # noqa: PLC0415 - py4j, only for runs

        return start_session(self.app_name or job_name, self.master, {**self.conf, **(required or {})})
