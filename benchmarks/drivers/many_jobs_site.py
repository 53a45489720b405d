"""The code location of ``many_jobs.py``, and the launcher that hands its runs over to drivers without Spark."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import dagster as dg
from dagster._core.launcher import RunLauncher
from dagster._serdes import ConfigurableClass, ConfigurableClassData

from dagster_ckpt import (
    CheckpointConfig,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
    checkpointed_streaming_asset,
)
from dagster_ckpt.orchestration.names import SERIES_TAG

#: The environment variable with a :class:`Site`.
SITE = "MANY_JOBS_SITE"


@dataclass(frozen=True)
class Site:
    """What all processes of the benchmark know.

    Attributes:
        directory: for orders to drivers, and for what drivers tell.
        jobs: how many there are.
        options: of the bucket, as the sensor reaches it.
        interval: seconds between two checkpoints of a job.
        lease: seconds between two heartbeats, and of the lease.
    """

    directory: str
    jobs: int
    options: dict[str, Any]
    interval: float
    lease: tuple[float, float]

    @classmethod
    def of_environment(cls) -> Self:
        return cls(**json.loads(os.environ[SITE]))

    @property
    def orders(self) -> Path:
        return Path(self.directory) / "orders"

    @property
    def config(self) -> CheckpointConfig:
        beat, timeout = self.lease
        return CheckpointConfig(
            interval=f"{self.interval} s",
            heartbeat_interval=f"{beat} s",
            heartbeat_timeout=f"{timeout} s",
            num_retained=2,
        )

    def storage(self, options: dict[str, Any] | None = None) -> FileSystemCheckpointStorage:
        return FileSystemCheckpointStorage(
            checkpoint_path="gs://checkpoints/base", storage_options=options or self.options
        )

    def order(self, run: dg.DagsterRun) -> None:
        """Leave a run to the next driver that has room."""
        order = {"run": run.run_id, "job": run.job_name.removesuffix("_job"), "series": run.tags.get(SERIES_TAG)}
        new = self.orders / f".{run.run_id}"
        new.write_text(json.dumps(order), encoding="utf-8")
        new.rename(new.with_name(run.run_id))

    def job(self, number: int) -> str:
        return f"job_{number:06}"

    def definitions(self) -> dg.Definitions:
        """The jobs, of which none ever starts Spark."""

        def never_run(context: dg.AssetExecutionContext, spark: object) -> NoReturn:
            raise AssertionError((context, spark))

        restart = RestartStrategies.fixed_delay_restart(1_000_000, "1 ms")
        assets = [
            checkpointed_streaming_asset(name=self.job(number), config=self.config, restart=restart)(never_run)
            for number in range(self.jobs)
        ]
        resources = {"checkpoint_storage": self.storage(), "spark": SparkSessionResource()}
        return build_checkpoint_definitions(assets, resources)


class DriversWithoutSpark(RunLauncher, ConfigurableClass):
    """Launches a run by an order, which one of the waiting drivers takes."""

    def __init__(self, inst_data: ConfigurableClassData | None = None) -> None:
        self._inst_data = inst_data
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: object) -> Self:
        del config_value
        return cls(inst_data)

    def launch_run(self, context: Any) -> None:
        Site.of_environment().order(context.dagster_run)

    def terminate(self, run_id: str) -> bool:
        """No run is terminated: processes are killed."""
        del run_id
        return False


if SITE in os.environ:
    defs = Site.of_environment().definitions()
