"""A streaming job, and a DAG that verifies each of the job's checkpoints."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task
from checkpointed_jobs import CheckpointedJobOperator, CheckpointTrigger

PYTHON = os.environ["ORDERS_PYTHON"]
PATH = f"{os.environ['ORDERS_DATA']}/checkpoints"
PROJECT = str(Path(__file__).resolve().parents[1] / "project")

checkpoints = Asset(
    "orders_checkpoints",
    watchers=[
        AssetWatcher(
            name="orders_checkpoints",
            trigger=CheckpointTrigger(job="orders", path=PATH, python=PYTHON, poll_interval=5),
        )
    ],
)

# One job has one driver, so one DAG run at a time.
with DAG("orders", schedule=None, max_active_runs=1):
    CheckpointedJobOperator(
        task_id="stream",
        target="orders:orders",
        job="orders",
        path=PATH,
        job_resources="orders:resources",
        python=PYTHON,
        cwd=PROJECT,
        retries=5,
        retry_delay=timedelta(seconds=5),
    )

with DAG("verify_orders", schedule=[checkpoints]):

    @task(retries=2, retry_delay=timedelta(seconds=5))
    def verify(triggering_asset_events: Any = None) -> list[str]:
        """Read every byte of the checkpoints that this DAG run is for: Airflow may hand several events to one run."""
        verified = [event.extra["payload"]["checkpoint"] for event in triggering_asset_events[checkpoints]]
        for checkpoint in verified:
            command = [PYTHON, "-m", "dagster_ckpt.cli", "verify", "orders", checkpoint, "--path", PATH]
            subprocess.run(command, check=True)
        return verified

    verify()
