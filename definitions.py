"""The code location that ``dagster dev`` opens: the example pipelines, wired."""

from __future__ import annotations

import os

import dagster as dg

from assets.landing import landed_flights
from assets.report import delay_report
from assets.settings import DataPaths, storage_options
from assets.streams import daily_schedule, flight_delays, flight_delays_daily
from dagster_ckpt import FileSystemCheckpointStorage, SparkSessionResource, build_checkpoint_definitions

defs = dg.Definitions.merge(
    build_checkpoint_definitions(
        [flight_delays, flight_delays_daily],
        resources={
            "checkpoint_storage": FileSystemCheckpointStorage(
                checkpoint_path=DataPaths.from_environment().checkpoints,
                storage_options=storage_options(),
                savepoint_path=os.fspath(DataPaths.from_environment().savepoints),
            ),
            "spark": SparkSessionResource(
                master="local[2]",
                conf={
                    "spark.driver.memory": "1g",
                    "spark.sql.session.timeZone": "UTC",
                    # The example's state is small: two partitions for two cores.
                    "spark.sql.shuffle.partitions": "2",
                    "spark.ui.enabled": "false",
                },
            ),
        },
    ),
    dg.Definitions(assets=[landed_flights, delay_report], schedules=[daily_schedule]),
)
