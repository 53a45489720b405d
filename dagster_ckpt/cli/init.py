"""``dagster-ckpt init``: a small project that runs, to change into one's own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from dagster_ckpt.cli.places import JSON
from dagster_ckpt.cli.printing import say, say_json
from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["INSTANCE", "init"]

#: What a Dagster instance needs for checkpointed jobs.
INSTANCE = """\
# Settings of a Dagster instance for checkpointed jobs.
telemetry: {enabled: false}
nux: {enabled: false}
run_retries: {enabled: false}            # dagster_ckpt's sensor owns restarts
run_monitoring:
  enabled: true
  start_timeout_seconds: 120
  cancel_timeout_seconds: 120            # longer than the longest savepoint
  poll_interval_seconds: 10
  free_slots_after_run_end_seconds: 30
concurrency:
  runs:
    max_concurrent_runs: 25
    tag_concurrency_limits:
      - {key: dagster_ckpt/job, value: {applyLimitPerUniqueValue: true}, limit: 1}
run_queue: {dequeue_interval_seconds: 1}
sensors: {use_threads: true, num_workers: 4}
retention:
  sensor: {purge_after_days: {skipped: 1, success: 30, failure: 30}}
# storage: {postgres: {...}}             # for more than one host or many jobs
"""

_DEFINITIONS = '''\
"""Orders land hour by hour, and a stream sums up the turnover of each shop. Its state is checkpointed."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import dagster as dg
import dagster_ckpt as ckpt
from pyspark.sql import functions as F

DATA = Path(__file__).parent.resolve() / "data"
(DATA / "orders").mkdir(parents=True, exist_ok=True)


@dg.asset
def orders() -> dg.MaterializeResult:
    """One more hour of orders: each materialization lands a file."""
    hour = len(list((DATA / "orders").glob("*.json")))
    begin = datetime(2026, 3, 1, tzinfo=timezone.utc) + timedelta(hours=hour)
    lines = [
        {"at": (begin + timedelta(seconds=36 * n)).isoformat(), "shop": ("north", "south")[n % 2], "cents": n}
        for n in range(100)
    ]
    landing = DATA / "orders" / f".{hour:05}"
    landing.write_text("".join(f"{json.dumps(line)}\\n" for line in lines))
    landing.rename(DATA / "orders" / f"{hour:05}.json")
    return dg.MaterializeResult(metadata={"hour": hour})


@ckpt.checkpointed_streaming_asset(deps=[orders], config=ckpt.CheckpointConfig(interval="10 s", num_retained=20))
def turnover(context, spark):
    """The turnover of each shop and hour; an hour is written when a later hour has begun."""
    read = spark.readStream.schema("at TIMESTAMP, shop STRING, cents LONG").json(str(DATA / "orders"))
    hourly = read.withWatermark("at", "1 minute").groupBy(F.window("at", "1 hour"), "shop")
    sums = hourly.agg(F.sum("cents").alias("cents"))
    return sums.writeStream.format("parquet").option("path", str(DATA / "turnover")).outputMode("append")


defs = dg.Definitions.merge(
    ckpt.build_checkpoint_definitions(
        [turnover],
        resources={
            "checkpoint_storage": ckpt.FileSystemCheckpointStorage(
                checkpoint_path=str(DATA / "checkpoints"), savepoint_path=str(DATA / "savepoints")
            ),
            "spark": ckpt.SparkSessionResource(master="local[2]", conf={"spark.driver.memory": "1g"}),
        },
    ),
    dg.Definitions(assets=[orders]),
)
'''


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@JSON
def init(directory: Path, as_json: bool) -> None:
    """Write a small project that runs into DIRECTORY, and the settings of a Dagster instance for it."""
    files = {directory / "definitions.py": _DEFINITIONS, directory / "dagster_home" / "dagster.yaml": INSTANCE}
    try:
        place = directory.resolve()
        _write(files)
    except OSError as error:
        raise InvalidConfiguration(
            f"No project can be written to {directory}: {error.strerror}.",
            hint="Call `dagster-ckpt init` with another directory.",
        ) from error
    dagster, command = _beside_python("dagster"), _beside_python("dagster-ckpt")
    start = f"DAGSTER_HOME={_quoted(place / 'dagster_home')} {dagster} dev --log-level warning"
    start += f" -f {_quoted(directory / 'definitions.py')}"
    checkpoints = place / "data" / "checkpoints"
    if as_json:
        say_json({"files": [str(path) for path in files], "start": start, "checkpoint_path": str(checkpoints)})
        return
    for path in files:
        say(f"wrote {path}")
    say("Start Dagster, and open http://localhost:3000:")
    say(f"  {start}")
    say("There: materialize `orders` twice, launch `turnover_job`, and look at the asset `turnover_checkpoints`.")
    say("Then, in another shell:")
    say(f"  export DAGSTER_CKPT_PATH={_quoted(checkpoints)}")
    say(f"  {command} status")
    say(f"  {command} list turnover")


def _write(files: Mapping[Path, str]) -> None:
    """Write all files or none.

    Raises:
        InvalidConfiguration: one of them is there.
        OSError: they cannot be written.
    """
    for path in files:
        if path.exists():
            raise InvalidConfiguration(
                f"{path} is there already.",
                hint="Call `dagster-ckpt init` with another directory. Nothing was written.",
            )
    begun: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                begun.append(path)
                file.write(text)
    except OSError:
        for path in begun:
            path.unlink(missing_ok=True)
        raise


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _beside_python(program: str) -> str:
    """A program as a shell finds it where its environment is not activated, too."""
    found = Path(sys.executable).with_name(program)
    return _quoted(found) if found.exists() else program
