"""Spark as a Dagster resource."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import ConfigDict, Field

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.spark import Event, RunResult, StreamingRun

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
        default=True,
        description="Start the JVM of Spark beside the first look at the storage, not after it; for a run that resumes "
        "a job, when Dagster launches the run.",
    )
    class_archive: bool = Field(
        default=True,
        description="Keep the classes of Spark in an archive (200 MB in the user's cache) that the next JVM starts "
        "from. It is made once, in a process of the lowest priority, after the first checkpoint of a run.",
    )
    standby: int = Field(
        default=0,
        ge=0,
        le=1,
        description="1: beside a running job another JVM of Spark waits, started and warm, with the memory of a second "
        "driver. The next run of the job on this host goes on in it.",
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

        if self.standby and not self.starts_early:
            with contextlib.suppress(Exception):  # the session starts what is missing, and tells why
                self.start_jvm(job_name, required)
        return start_session(*self._given(job_name, required), class_archive=self.class_archive)

    def start_jvm(self, job_name: str, required: Mapping[str, str] | None = None) -> bool:
        """Start the JVM that :meth:`session` with the same arguments will use; on any thread.

        Returns:
            whether it is a JVM that has waited for this run: that of a standby, or by :meth:`launch_jvm`.

        Raises:
            JavaNotFound: no usable Java.
        """
        from dagster_ckpt.spark import adopt_standby, start_jvm  # noqa: PLC0415 - as above

        given = self._given(job_name, required)
        if adopt_standby(*given, class_archive=self.class_archive, kept=bool(self.standby)):
            return True
        start_jvm(*given, class_archive=self.class_archive)
        return False

    def launch_jvm(self, job_name: str, required: Mapping[str, str] | None = None) -> None:
        """Begin to start the JVM of a run that is launched now on this host; returns at once.

        The arguments are those of :meth:`start_jvm`, which that run calls.
        """
        from dagster_ckpt.spark import launch_early  # noqa: PLC0415 - as above

        launch_early(*self._given(job_name, required), class_archive=self.class_archive)

    def _given(self, job_name: str, required: Mapping[str, str] | None) -> tuple[str, str, dict[str, str]]:
        """The name, master and conf of Spark."""
        return self.app_name or job_name, self.master, {**self.conf, **(required or {})}

    def supervise(
        self,
        start: Callable[[Callable[[Event], None]], StreamingRun],
        on_event: Callable[[Event], None],
        *,
        on_turn: Callable[[], None] = lambda: None,
        is_cancellation: Callable[[], bool] = lambda: True,
    ) -> RunResult:
        """Drive a run as :func:`~dagster_ckpt.spark.supervise` does, and help the next start of the job meanwhile.

        The first checkpoint shows that the job is under way: from then on help is no delay.
        """
        from dagster_ckpt.spark import CheckpointCompleted, supervise  # noqa: PLC0415 - as above

        def told(event: Event) -> None:
            on_event(event)
            if isinstance(event, CheckpointCompleted):
                self.help_next_start()

        with self.standby_ends_with_job(is_cancellation) as is_canceled:
            return supervise(start, told, on_turn=on_turn, is_cancellation=is_canceled)

    def help_next_start(self) -> None:
        """Have the class archive and a standby made in the background, where they are wanted; returns at once."""
        self.make_class_archive()
        if self.standby:
            from dagster_ckpt.spark import keep_standby  # noqa: PLC0415 - as above

            keep_standby()

    @contextlib.contextmanager
    def standby_ends_with_job(self, is_canceled: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
        """End the standby when the run has ended well, or is canceled: no run goes on from there.

        Args:
            is_canceled: whether an interrupt of the run means that the job is canceled.

        Returns:
            the function to ask instead of ``is_canceled``.
        """

        def end() -> None:
            if self.standby:
                from dagster_ckpt.spark import end_standby  # noqa: PLC0415 - as above

                end_standby()

        def asked() -> bool:
            if canceled := is_canceled():
                end()
            return canceled

        yield asked
        end()

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
