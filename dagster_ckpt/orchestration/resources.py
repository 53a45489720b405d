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
    early_jvm: bool = Field(
        default=True, description="Start the JVM of Spark beside the first look at the storage, not after it."
    )
    class_archive: bool = Field(
        default=True,
        description="Keep the classes of Spark in an archive (190 MB in the user's cache) that the next JVM starts "
        "from. It is made once, in a process of the lowest priority, after the first checkpoint of a run.",
    )

    @property
    def starts_early(self) -> bool:
        """Whether a run calls :meth:`start_jvm` before :meth:`session`: not if a subclass makes its own session."""
        return self.early_jvm and type(self).session is SparkSessionResource.session

    def session(self, job_name: str, required: Mapping[str, str] | None = None) -> SparkSession:
        """Start Spark, or join the session of this process.

        Args:
            job_name: of the job that needs Spark.
            required: settings that win over ``conf``; most of them have an effect only when Spark is started here.

        Raises:
            JavaNotFound: no usable Java.
        """
        from dagster_ckpt.spark import start_session  # noqa: PLC0415 - py4j, only for runs

        conf = {**self.conf, **(required or {})}
        return start_session(self.app_name or job_name, self.master, conf, class_archive=self.class_archive)

    def start_jvm(self, job_name: str, required: Mapping[str, str] | None = None) -> None:
        """Start the JVM that :meth:`session` with the same arguments will use; on any thread.

        Raises:
            JavaNotFound: no usable Java.
        """
        from dagster_ckpt.spark import start_jvm  # noqa: PLC0415 - as above

        conf = {**self.conf, **(required or {})}
        start_jvm(self.app_name or job_name, self.master, conf, class_archive=self.class_archive)

    def make_class_archive(self, *, wait: bool = False) -> None:
        """Have the class archive made in the background, unless it is there or switched off.

        Args:
            wait: return when it is made; else at once.

        Raises:
            SparkNotStarted: with ``wait``, the archive could not be made.
        """
        if self.class_archive:
            from dagster_ckpt.spark import make_class_archive  # noqa: PLC0415 - as above

            make_class_archive(self.conf, wait=wait)
