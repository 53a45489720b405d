"""What a job's age and the number of jobs cost: retention, listing, starting, and a tick of the resume sensor.

    python benchmarks/age.py --output age.json

``--retained`` checkpoints are written to a local directory without Spark, in three shapes: one start, 100 starts, and
100 starts of which every third goes back to an earlier checkpoint. Then are measured:

* ``start``: choose the newest checkpoint, record the choice, open the store, sweep;
* ``subsume``: what retention does after one more checkpoint, median of 5, without writing that checkpoint;
* ``list`` and ``retention``: the commands.

``--jobs`` jobs of one code location are watched by one sensor: jobs that never ran, in a local directory; jobs that
run, and jobs whose end was cleaned up after, in a bucket whose server takes ``--latency`` seconds more for each
request. Between two ticks every running job beats. The first tick of a sensor knows nothing yet; the later ones are the
median of ``--rounds``. ``status`` is the command in a process of its own, for all jobs of the bucket, each of which has
a checkpoint: the median of as many, with the processor time of all its processes. That server takes a millisecond of a
processor for a request; so its answers are kept by another one, and come from there, as late.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.object_store import BUCKET, asked, serving  # noqa: E402 - below the path

JOB, JOB_ID = "old", "a" * 32
#: The run of the start that is measured.
RUN = "r"
#: Starts, and after how many of them one goes back.
SHAPES = {"1 start": (1, 0), "100 starts": (100, 0), "100 starts with rollbacks": (100, 3)}
#: Files of a checkpoint, and how many of them are new.
FILES, NEW = 12, 4


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retained", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds a request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["retention", "sensor"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    records: list[dict[str, Any]] = []
    for part, measure in (("retention", _retention), ("sensor", _sensor)):
        for record in measure(options) if options.only in {None, part} else ():
            print(record, file=sys.stderr, flush=True)
            records.append(record)
    if options.output:
        options.output.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    print("| what | of | seconds | CPU seconds | requests |\n|---|---|---|---|---|")
    for record in records:
        requests = record.get("requests", "")
        print(f"| {record['what']} | {record['of']} | {record['seconds']:.3f} | {record['cpu']:.3f} | {requests} |")
    return 0


def measured(run: Callable[..., object], *arguments: object) -> dict[str, float]:
    """How long ``run`` takes, and the CPU seconds of this process."""
    cpu, begun = time.process_time(), time.monotonic()
    run(*arguments)
    return {"seconds": time.monotonic() - begun, "cpu": time.process_time() - cpu}


def median(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _retention(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from dagster_ckpt.config.retention import Retention  # noqa: PLC0415 - the sensor is measured without it

    for shape in SHAPES:
        of = f"{options.retained:,} retained, {shape}"
        with tempfile.TemporaryDirectory(prefix="age-") as home:
            filesystem, newest = fill(Path(home), shape, options.retained)
            run_command("--help")
            yield {"what": "list", "of": of, **measured(run_command, "list", JOB, "--path", home)}
            half = ("--num-retained", str(options.retained // 2))
            yield {"what": "retention", "of": of, **measured(run_command, "retention", JOB, "--path", home, *half)}
            stores: list[Any] = []
            yield {"what": "start", "of": of, **measured(start, filesystem, stores)}
            store, runs = stores[0], []
            for _ in range(options.rounds):
                complete(store, newest)
                runs.append(measured(store.subsume, Retention(options.retained)))
            if len(store.retained) != options.retained:
                raise RuntimeError(f"{len(store.retained)} are retained")
            yield {"what": "subsume", "of": of, **median(runs)}


def fill(home: Path, shape: str, retained: int) -> tuple[Any, Any]:
    """Write the checkpoints of a job as its starts would have; they are there without a sync of the disk."""
    from dagster_ckpt.checkpoint.control.epochs import Choice  # noqa: PLC0415
    from dagster_ckpt.checkpoint.format.records import encode_record  # noqa: PLC0415
    from dagster_ckpt.filesystem import PosixFileSystem  # noqa: PLC0415

    starts, back = SHAPES[shape]
    starts = min(starts, retained)
    filesystem = PosixFileSystem(home)
    lineage, epochs = home / JOB / JOB_ID, home / JOB / "control" / "epochs"
    issued = home / JOB / "control" / "issued" / JOB_ID
    for directory in (lineage / "shared", epochs, issued):
        directory.mkdir(parents=True)
    metadata, restored, number = None, None, 0
    files = tuple(_file(0, index) for index in range(FILES))
    for epoch in range(1, starts + 1):
        first = number + 1
        claim = _claim(epoch)
        choice = Choice(
            JOB_ID, restored, first, number, "/live", "h", None, "benchmark", complete=tuple(range(1, first))
        )
        for suffix, record in (("", claim), (".choice", choice)):
            place = f"{JOB}/control/epochs/e-{epoch:010}{suffix}"
            (home / place).write_bytes(encode_record(record, place))
        for number in range(first, retained * epoch // starts + 1):
            at = number * NEW % FILES
            new = {(at + index) % FILES: _file(number, (at + index) % FILES) for index in range(NEW)}
            files = tuple(new.get(index, file) for index, file in enumerate(files))
            metadata = _checkpoint(JOB, claim, number, restored, files)
            for file in files if number == 1 else new.values():
                (lineage / "shared" / Path(file.reference).name).write_bytes(b"x")
            (lineage / f"chk-{number}").mkdir()
            (lineage / f"chk-{number}" / "_metadata").write_bytes(metadata.encode())
        (issued / f"e-{epoch:010}-{number:015}").write_text(f"{number}\n", encoding="utf-8")
        going_back = back and epoch % back == 0
        restored = f"{JOB_ID}/chk-{max(1, number - 2 * retained // starts if going_back else number)}"
    return filesystem, metadata


def _checkpoint(job: str, claim: Any, number: int, restored: str | None, files: tuple[Any, ...]) -> Any:
    from dagster_ckpt.checkpoint.format.facts import Facts  # noqa: PLC0415
    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata  # noqa: PLC0415

    return CheckpointMetadata(
        job_name=job,
        job_id=JOB_ID,
        checkpoint_id=number,
        epoch=claim.epoch,
        batch=number,
        mode="EXACTLY_ONCE",
        kind="checkpoint",
        restored_from=restored,
        writer={"run_id": claim.run_id, "host": "h", "pid": 1},
        triggered_at="2026-11-01T00:00:00+00:00",
        written_at="2026-11-01T00:00:01+00:00",
        timings_ms={"align": 1.5, "pin": 0.5, "write": 12.25},
        new_bytes=NEW,
        facts=Facts(query_id="q", batch=number, partitions=4, progress={"input_rows": 7}),
        sink={"kind": "files", "path": "/out", "batch": number},
        files=files,
    )


def _file(number: int, index: int) -> Any:
    from dagster_ckpt.checkpoint.format.manifest import FileEntry  # noqa: PLC0415

    name = f"000001-{number * FILES + index:012x}-{number}.delta"
    return FileEntry(f"checkpoint/state/0/{index}/{number}.delta", 1, "0" * 64, reference=f"../shared/{name}")


def _claim(epoch: int) -> Any:
    from dagster_ckpt.checkpoint.control.epochs import Claim  # noqa: PLC0415

    return Claim(epoch, uuid.uuid4().hex, 1, str(uuid.uuid4()), "h", 1, "2026-11-01T00:00:00+00:00")


def run_command(*arguments: str) -> None:
    """Run ``dagster-ckpt`` in this process, to an end that is good."""
    from click.testing import CliRunner  # noqa: PLC0415

    from dagster_ckpt.cli import main as command  # noqa: PLC0415

    result = CliRunner().invoke(command, list(arguments))
    if result.exit_code:
        raise RuntimeError(result.output) from result.exception


def start(filesystem: Any, stores: list[Any]) -> None:
    """What a start does beside Spark: claim, choose, record, open the store, sweep."""
    from dagster_ckpt.checkpoint import CheckpointCatalog, Choice, CompletedCheckpointStore, find_newest, sweep_start  # noqa: PLC0415
    from dagster_ckpt.clock import SystemClock, iso  # noqa: PLC0415

    catalog = CheckpointCatalog(filesystem, JOB)
    claim = catalog.records.epochs.claim(
        token=uuid.uuid4().hex, series=1, run_id=RUN, host="h", pid=1, now=iso(time.time())
    )
    newest = find_newest(catalog).metadata
    assert newest is not None
    complete = catalog.completed_at_choice(claim.epoch, JOB_ID, newest)
    first = catalog.next_id(JOB_ID, newest)
    choice = Choice(JOB_ID, newest.reference, first, max(complete), "/live", "h", None, "benchmark", complete=complete)
    catalog.records.epochs.record_choice(claim.epoch, choice)
    store = CompletedCheckpointStore(
        catalog,
        claim,
        job_id=JOB_ID,
        first_id=first,
        restored_from=newest.reference,
        mode="EXACTLY_ONCE",
        clock=SystemClock(),
        verified=newest,
    )
    if sweep_start(store):
        raise RuntimeError("something was swept")
    stores.append(store)


def complete(store: Any, newest: Any) -> None:
    """One more checkpoint, of a file of its own."""
    from dagster_ckpt.checkpoint.format.facts import Facts  # noqa: PLC0415
    from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot  # noqa: PLC0415

    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
        file.flush()
        pinned = PinnedFile(f"checkpoint/state/0/0/{store.next_id}.delta", file.name, 1)
        store.write(store.begin(), Snapshot(newest.batch + store.next_id, (pinned,), Facts(), None, lambda: None))


def _sensor(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from dagster_ckpt import FileSystemCheckpointStorage  # noqa: PLC0415 - Dagster, not of the other part

    with tempfile.TemporaryDirectory(prefix="age-") as home:
        yield from _ticks(options, FileSystemCheckpointStorage(checkpoint_path=home), "never ran, on a disk", None)
    for what, over in (("run", False), ("are over", True)):
        with serving(options.latency) as url:
            connect = {"endpoint_url": url, "token": "anon", "project": "p"}
            storage = FileSystemCheckpointStorage(checkpoint_path=f"gs://{BUCKET}/base", storage_options=connect)
            yield from _ticks(options, storage, f"{what}, in a bucket", url, over=over)
            if not over:
                _beat_for_long(storage.filesystem(), [f"job_{number:06}" for number in range(options.jobs)])
            runs = list(_status(url, connect, options))
            yield {"what": "status", "of": f"{options.jobs:,} jobs that {what}, in a bucket", **median(runs)}


def _status(url: str, connect: dict[str, str], options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """The command again and again, while nothing changes in the bucket."""
    front = [sys.executable, "-m", "benchmarks.drivers.replayed_server", url, str(options.latency)]
    with subprocess.Popen(front, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            connect = connect | {"endpoint_url": process.stdout.readline().strip()}
            of_storage = [part for item in connect.items() for part in ("--storage-option", "=".join(item))]
            command = [sys.executable, "-m", "dagster_ckpt.cli", "status", "--path", f"gs://{BUCKET}/base", *of_storage]
            for turn in range(options.rounds + 1):
                requests, cpu, begun = asked(connect["endpoint_url"])["requests"], _cpu_of_children(), time.monotonic()
                told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
                seconds = time.monotonic() - begun
                if len(set(re.findall(r"job_\d+", told))) != options.jobs:
                    raise RuntimeError(f"Not every job is told of: {told[:1000]}")
                if turn:  # in the first one the answers are learned
                    requests = asked(connect["endpoint_url"])["requests"] - requests
                    yield {"seconds": seconds, "cpu": _cpu_of_children() - cpu, "requests": requests}
        finally:
            process.kill()


def _beat_for_long(filesystem: Any, names: list[str]) -> None:
    """Let every job beat once more, with a lease that lasts until the command has been run a few times."""
    from dagster_ckpt.checkpoint.control.heartbeat import HeartbeatFile  # noqa: PLC0415
    from dagster_ckpt.checkpoint.lease import Lease  # noqa: PLC0415

    def beat_once(name: str) -> None:
        file = HeartbeatFile(filesystem, name)
        last = file.read()
        assert last is not None
        file.write(replace(last, sequence=last.sequence + 1, beat_at=time.time(), lease=Lease(120, 600)))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(beat_once, names))


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ticks(
    options: argparse.Namespace, storage: Any, what: str, url: str | None, *, over: bool = False
) -> Iterator[dict[str, Any]]:
    """The first tick of a sensor, and the median of later ones."""
    import dagster as dg  # noqa: PLC0415

    from dagster_ckpt import SparkSessionResource, build_checkpoint_definitions, checkpointed_streaming_asset  # noqa: PLC0415

    def never_run(context: dg.AssetExecutionContext, spark: object) -> NoReturn:
        raise AssertionError((context, spark))

    names = [f"job_{number:06}" for number in range(options.jobs)]
    assets = [checkpointed_streaming_asset(name=name)(never_run) for name in names]
    definitions = build_checkpoint_definitions(assets, {"checkpoint_storage": storage, "spark": SparkSessionResource()})
    sensor = definitions.resolve_sensor_def(f"{names[0]}_resume_sensor")
    claims = [] if url is None else _begin(storage.filesystem(), names, over=over)
    # Jobs that are over have been cleaned up after by an earlier tick, as a sensor's cursor tells.
    finished = {name: claim.token for name, claim in zip(names, claims, strict=True)} if over else {}
    cursor: str | None = json.dumps({"first": 0, "finished": finished})

    def tick() -> None:
        nonlocal cursor
        context = dg.build_sensor_context(
            instance=instance, cursor=cursor, resources={"checkpoint_storage": storage}, definitions=definitions
        )
        told = sensor.evaluate_tick(context)
        cursor = told.cursor
        if told.run_requests or "could not" in (told.skip_message or ""):
            raise RuntimeError(told)

    with tempfile.TemporaryDirectory(prefix="age-") as home, dg.DagsterInstance.local_temp(home) as instance:
        runs = []
        for turn in range(options.rounds + 1):
            if claims and not over:
                beat(storage.filesystem(), names, claims, turn)
            before = asked(url)["requests"] if url else 0
            runs.append(measured(tick))
            if url:
                runs[-1]["requests"] = asked(url)["requests"] - before
        yield {"what": "first tick", "of": f"{options.jobs:,} jobs that {what}", **runs[0]}
        yield {"what": "tick", "of": f"{options.jobs:,} jobs that {what}", **median(runs[1:])}


def _begin(filesystem: Any, names: list[str], *, over: bool) -> list[Any]:
    """Write the records of jobs that have been started once, and of which some are over; returns their claims."""
    from dagster_ckpt.checkpoint.control.epochs import Choice, End  # noqa: PLC0415
    from dagster_ckpt.checkpoint.format.records import encode_record  # noqa: PLC0415

    end = End("FINISHED", "the stream is at its end", discarded=False, ended_at="2026-11-01T00:00:00+00:00")
    choice = Choice(JOB_ID, None, 1, 0, "/live", "h", None, "benchmark", complete=())
    claims, items = [_claim(1) for _ in names], []
    for name, claim in zip(names, claims, strict=True):
        for suffix, record in (("", claim), (".choice", choice), *([(".end", end)] if over else [])):
            place = f"{name}/control/epochs/e-{1:010}{suffix}"
            items.append((place, encode_record(record, place)))
        checkpoint = _checkpoint(name, claim, 1, None, tuple(_file(1, index) for index in range(FILES)))
        items.append((f"{name}/{JOB_ID}/chk-1/_metadata", checkpoint.encode()))
    filesystem.write_many(items, lambda: False)
    beat(filesystem, names, claims, 0, stopped=over)
    return claims


def beat(filesystem: Any, names: list[str], claims: list[Any], sequence: int, *, stopped: bool = False) -> None:
    """Let every job give a sign of life, of this process."""
    from dagster_ckpt.checkpoint.control.heartbeat import Completed, Heartbeat, HeartbeatFile  # noqa: PLC0415
    from dagster_ckpt.checkpoint.processes import ProcessIdentity  # noqa: PLC0415
    from dagster_ckpt.clock import SystemClock  # noqa: PLC0415

    process = ProcessIdentity.current()
    if stopped:
        process = replace(process, created=process.created - 1000, ticks=None)

    def beat_of(pair: tuple[str, Any]) -> None:
        name, claim = pair
        now = Heartbeat(
            claim.epoch,
            claim.run_id,
            (process,),
            sequence,
            time.time(),
            stopped,
            uptime=SystemClock().monotonic(),
            completed=Completed(f"{JOB_ID}/chk-1", claim.epoch),
        )
        HeartbeatFile(filesystem, name).write(now)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(beat_of, zip(names, claims, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
