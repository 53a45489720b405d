"""What the requests of a quiet job to its bucket cost in a month, counted at the bucket's server.

    python benchmarks/request_cost.py --output request_cost.json

A real job runs with its checkpoints in a bucket and without new input: in a Dagster run, with the resume sensor beside
it (``dagster``), in a driver of its own that ``spark-submit`` starts and such a run attends (``driver``), or by
``dagster_ckpt.run`` (``run``). Each bucket has two doors with a log each, one for the job and one for the sensor. Once
the job has been quiet for ``--settle`` seconds, the requests of ``--seconds`` are counted. Each case has a process of
its own, and all run side by side. The prices below make USD of the requests. What is stored and what leaves the cloud
is not counted, nor is what a batch and a checkpoint cost.

``gs`` is the server of ``dagster_ckpt.testing``, ``s3`` is moto, and ``abfs`` is Azurite, which ``npm`` installs unless
it is there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

#: USD for a million writes or listings, and for a million reads; deletions are free. List prices, noted on 2026-11-24,
#: of Standard in one region (Google) and S3 Standard in us-east-1 (Amazon). For hot LRS with hierarchical namespace
#: (Azure) no price list could be read: compare the figures with your own.
PRICES = {"gs": (5.0, 0.4), "s3": (5.0, 0.4), "abfs": (6.5, 0.52)}
#: The servers' words for reads, and for what is free. All others are writes or listings.
READS, FREE = frozenset({"read", "stat"}), frozenset({"delete", "cancel", "abort"})
#: Seconds between two heartbeats, and seconds of the lease: of the default, and for a quiet job.
LEASES = {"default": (2, 30), "quiet": (60, 300), "quieter": (90, 450)}
MONTH = 30 * 24 * 3600.0
JOB, BUCKET = "quiet", "checkpoints"
WAYS = ["dagster", "driver", "run"]
#: The variable that tells a driver of its own its definitions: the door, the lease, the directory.
_ORDER = "DAGSTER_CKPT_REQUEST_COST"


@dataclass(frozen=True)
class Door:
    """One way into the bucket: where the storage is, how it is reached, and the requests so far."""

    path: str
    options: dict[str, Any]
    log: Callable[[], Sequence[Any]]


def main() -> int:
    """Run the benchmark, or, with ``--case``, one case of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--settle", type=float, default=90, help="seconds after the start that are not counted")
    parser.add_argument("--tick", type=float, default=5, help="seconds between two ticks of the sensor")
    parser.add_argument("--storages", nargs="+", default=list(PRICES), choices=list(PRICES))
    parser.add_argument("--leases", nargs="+", default=["default", "quiet"], choices=list(LEASES))
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case", nargs=4, metavar=("STORAGE", "LEASE", "WAY", "HOME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_case(options, *options.case)), flush=True)
        return 0
    if "abfs" in options.storages:
        from tests.servers.programs import azurite  # noqa: PLC0415 - only where it is needed

        azurite()
    cases = [(storage, lease, way) for storage in options.storages for lease in options.leases for way in options.ways]
    with ThreadPoolExecutor(len(cases)) as pool:
        records = list(pool.map(lambda case: _in_a_process(options, *case), cases))
    if options.output:
        options.output.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    print(_table(records))
    return 0


def _in_a_process(options: argparse.Namespace, storage: str, lease: str, way: str) -> dict[str, Any]:
    figures = [f"--{name}={getattr(options, name)}" for name in ("seconds", "settle", "tick")]
    with tempfile.TemporaryDirectory(prefix="request-cost-") as home:
        command = [sys.executable, __file__, *figures, "--case", storage, lease, way, home]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    record: dict[str, Any] = json.loads(told.splitlines()[-1])
    print(record, file=sys.stderr, flush=True)
    return record


def _case(options: argparse.Namespace, storage: str, lease: str, way: str, home: str) -> dict[str, Any]:
    import dagster as dg  # noqa: PLC0415 - of the child alone

    with _doors(storage, Path(home)) as (door, sensors_door), dg.DagsterInstance.ephemeral() as instance:
        os.environ[_ORDER] = json.dumps([door.path, door.options, lease, home, way])
        definitions = submitted()
        threading.Thread(target=_drive, args=(definitions, way, instance), daemon=True).start()
        until = time.monotonic() + 900
        while not any(request.name.endswith("/_metadata") for request in list(door.log())):
            if time.monotonic() > until:
                raise RuntimeError("No checkpoint was completed.")
            time.sleep(0.1)
        for_sensor = _definitions(sensors_door.path, sensors_door.options, lease, Path(home), way)
        sensor = None if way == "run" else _Sensor(for_sensor, instance)
        _wait(options.settle, sensor, options.tick)
        before = len(door.log()), len(sensors_door.log())
        begun = time.monotonic()
        _wait(options.seconds, sensor, options.tick)
        seconds = time.monotonic() - begun
        counted = [list(one.log())[first:] for one, first in zip((door, sensors_door), before, strict=True)]
        if way == "driver":
            _end_driver(definitions)
    job, looks = (Counter(f"{item.kind} {item.name.rstrip('/').rpartition('/')[2]}" for item in log) for log in counted)
    figures = [_figures(storage, one, seconds) for one in (job, looks)]
    return {
        "storage": storage,
        "lease": lease,
        "way": way,
        "seconds": seconds,
        "job": figures[0],
        "sensor": figures[1],
        "usd": figures[0]["usd"] + figures[1]["usd"],
    }


def _end_driver(definitions: Any) -> None:
    """Kill the driver of its own, which would outlive this process; its JVM ends with it."""
    from dagster_ckpt.checkpoint import JobRecords  # noqa: PLC0415 - of the child alone

    beat = JobRecords(definitions.resources["checkpoint_storage"].filesystem(), JOB).heartbeat.read()
    if beat is not None:
        os.kill(beat.processes[0].pid, signal.SIGKILL)


def _figures(storage: str, counted: Counter[str], seconds: float) -> dict[str, Any]:
    """What was counted, and what it is in a month."""
    kinds: Counter[str] = Counter()
    for name, count in counted.items():
        kinds[name.partition(" ")[0]] += count
    reads = sum(count for kind, count in kinds.items() if kind in READS)
    writes = sum(count for kind, count in kinds.items() if kind not in READS | FREE)
    a_write, a_read = PRICES[storage]
    share = MONTH / seconds
    return {
        "counted": dict(counted.most_common()),
        "writes": round(writes * share),
        "reads": round(reads * share),
        "usd": (writes * a_write + reads * a_read) * share / 1e6,
    }


def _wait(seconds: float, sensor: _Sensor | None, tick: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if sensor is not None:
            sensor.tick()
        time.sleep(min(tick, left))


class _Sensor:
    """The resume sensor, as Dagster's daemon ticks it."""

    def __init__(self, definitions: Any, instance: Any) -> None:
        self._definitions, self._instance = definitions, instance
        self._sensor = definitions.resolve_sensor_def(f"{JOB}_resume_sensor")
        self._resources = {"checkpoint_storage": definitions.resources["checkpoint_storage"]}
        self._cursor: str | None = None

    def tick(self) -> None:
        import dagster as dg  # noqa: PLC0415 - of the child alone

        with dg.build_sensor_context(
            instance=self._instance, cursor=self._cursor, resources=self._resources, definitions=self._definitions
        ) as context:
            data = self._sensor.evaluate_tick(context)
        self._cursor = data.cursor
        if "is alive" not in (data.skip_message or ""):
            raise RuntimeError(f"The sensor does not see the job run: {data.skip_message}")


def submitted() -> Any:
    """The definitions of the case that the environment names, for its run and for a driver of its own."""
    path, options, lease, home, way = json.loads(os.environ[_ORDER])
    return _definitions(path, options, lease, Path(home), way)


def _definitions(path: str, options: dict[str, Any], lease: str, home: Path, way: str) -> Any:
    from dagster_ckpt import (  # noqa: PLC0415 - of the child alone
        CheckpointConfig,
        FileSystemCheckpointStorage,
        SparkSessionResource,
        SparkSubmitResource,
        build_checkpoint_definitions,
        checkpointed_streaming_asset,
    )

    landing = home / "in"
    landing.mkdir(exist_ok=True)
    (landing / "first.txt").write_text("one line\n", encoding="utf-8")
    interval, timeout = LEASES[lease]
    config = CheckpointConfig(interval="1 s", heartbeat_interval=f"{interval} s", heartbeat_timeout=f"{timeout} s")

    @checkpointed_streaming_asset(name=JOB, config=config)
    def quiet(context: Any, spark: Any) -> Any:
        del context
        return spark.readStream.text(str(landing)).writeStream.format("noop")

    storage = FileSystemCheckpointStorage(
        checkpoint_path=path, storage_options=options, working_directory=str(home / "live")
    )
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "512m"}
    spark: SparkSessionResource | SparkSubmitResource
    if way == "driver":
        spark = SparkSubmitResource(definitions="benchmarks.request_cost:submitted", master="local[1]", conf=conf)
    else:
        spark = SparkSessionResource(master="local[1]", conf=conf, class_archive=False)
    return build_checkpoint_definitions([quiet], {"checkpoint_storage": storage, "spark": spark})


def _drive(definitions: Any, way: str, instance: Any) -> None:
    import dagster_ckpt  # noqa: PLC0415 - of the child alone

    try:
        if way != "run":
            definitions.resolve_job_def(f"{JOB}_job").execute_in_process(instance=instance)
        else:
            (asset,) = (item for item in definitions.assets if getattr(item, "name", None) == JOB)
            dagster_ckpt.run(asset, resources=definitions)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # nothing can be counted without the job


@contextlib.contextmanager
def _doors(storage: str, home: Path) -> Iterator[tuple[Door, Door]]:
    """Two ways into one empty bucket."""
    with contextlib.ExitStack() as stack:
        if storage == "gs":
            from dagster_ckpt.testing.gcs.api import GcsApi  # noqa: PLC0415 - of the child alone
            from dagster_ckpt.testing.gcs.server import GcsServer  # noqa: PLC0415

            first, second = (stack.enter_context(GcsServer()) for _ in range(2))
            first.create_bucket(BUCKET)
            second._api = GcsApi(first._buckets, second._asked)  # noqa: SLF001 - one bucket, two logs
            yield _pair(f"gs://{BUCKET}/base", (first, second), lambda at: {"endpoint_url": at.url, "token": "anon"})
        elif storage == "s3":
            from tests.servers.s3 import S3Server, connection  # noqa: PLC0415 - of the child alone

            servers = [stack.enter_context(S3Server()) for _ in range(2)]  # moto has one state for the process
            servers[0].create_bucket(BUCKET)
            yield _pair(f"s3://{BUCKET}/base", servers, lambda at: connection(at.url))
        else:
            from tests.servers.azure_front import AzureFront  # noqa: PLC0415 - of the child alone
            from tests.servers.azurite import ACCOUNT, Azurite, options_at  # noqa: PLC0415

            azurite = stack.enter_context(Azurite(home))
            azurite.create(BUCKET)
            fronts = [stack.enter_context(AzureFront(azurite.host)) for _ in range(2)]
            where = f"abfs://{BUCKET}@{ACCOUNT}.dfs.core.windows.net/base"
            yield _pair(where, fronts, lambda at: options_at(at.host))


def _pair(path: str, servers: Sequence[Any], options: Callable[[Any], dict[str, Any]]) -> tuple[Door, Door]:
    def door(server: Any) -> Door:
        return Door(path, options(server), lambda: server.log)

    first, second = map(door, servers)
    return first, second


def _table(records: list[dict[str, Any]]) -> str:
    lines = [
        "| storage | lease | way | writes and listings a month | reads a month | USD, job | USD, sensor | USD |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        job, sensor = record["job"], record["sensor"]
        writes, reads = (f"{job[kind] + sensor[kind]:,}" for kind in ("writes", "reads"))
        case = f"| `{record['storage']}://` | {record['lease']} | {record['way']} | {writes} | {reads} |"
        lines.append(f"{case} {job['usd']:.2f} | {sensor['usd']:.2f} | **{record['usd']:.2f}** |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
