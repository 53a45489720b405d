"""Many jobs of one Dagster, of which some are killed again and again: ticks, requests, and how its database grows.

    python benchmarks/many_jobs.py --output many_jobs.json --page docs/reference/many-jobs.md

A real ``dagster dev`` on PostgreSQL, whose daemon ticks the resume sensor of ``--jobs`` jobs. Its run launcher starts
no Spark: processes that drive ``--per-driver`` jobs each hold the jobs' epochs, beat, and complete checkpoints with
this library's own code, in a bucket whose server takes ``--latency`` seconds more for each request. Once all jobs run,
``--minutes`` are measured. In each ``--every`` seconds of them one of these processes gets SIGKILL, and the sensor must
resume all of its jobs. The run fails when a job is not resumed, or is resumed from anything older than what was
acknowledged. The first runs are put on record without the webserver; the daemon launches those that resume.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dagster as dg  # noqa: E402 - below the path
import psutil  # noqa: E402
import yaml  # noqa: E402

from benchmarks.drivers.many_jobs_driver import drive  # noqa: E402
from benchmarks.drivers.many_jobs_site import SITE, Site  # noqa: E402
from dagster_ckpt.orchestration import names  # noqa: E402
from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for  # noqa: E402
from dagster_ckpt.testing.gcs.api import GcsApi  # noqa: E402
from dagster_ckpt.testing.gcs.server import GcsServer  # noqa: E402
from tests.servers.postgres import rows, running  # noqa: E402

_SITE = "benchmarks.drivers.many_jobs_site"
#: Seconds for all jobs to be launched, or to be resumed.
_PATIENCE = 3600.0
_TABLES = (
    "SELECT relname, pg_total_relation_size(c.oid)::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
    "WHERE nspname = 'public' AND relkind = 'r'"
)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--per-driver", type=int, default=50, help="jobs of one process, which die together")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=60, help="seconds from one kill to the next")
    parser.add_argument("--interval", type=float, default=300, help="seconds between two checkpoints of a job")
    parser.add_argument("--beat", type=float, default=60, help="seconds between two heartbeats, a fifth of the lease")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds a request")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="a new one, for logs; by default a temporary one")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--page", type=Path, help="write a Markdown page")
    options = parser.parse_args()
    with ExitStack() as stack:
        home = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="many-jobs-")))
        home.mkdir(parents=True, exist_ok=True)
        report = _measured(options, home.absolute(), stack)
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if options.page:
        options.page.write_text(_page(report), encoding="utf-8")
    print(_table(report["summary"]))
    return 0


def _measured(options: argparse.Namespace, home: Path, stack: ExitStack) -> dict[str, Any]:
    doors = stack.enter_context(_doors(options.latency))
    connect = [{"endpoint_url": door.url, "token": "anon", "project": "p"} for door in doors]
    site = Site(str(home), options.jobs, connect[1], options.interval, (options.beat, 5 * options.beat))
    for directory in (site.orders, home / "told"):
        directory.mkdir()
    server = stack.enter_context(running())
    database = server.database()
    dev = _dagster(home, site, server.url(database))
    os.environ |= {"DAGSTER_HOME": str(dev.home), SITE: json.dumps(asdict(site))}
    drivers = _Drivers(site, connect[0], options.per_driver, home / "told", options.seed)
    with dev:  # whose end kills the drivers, too
        for _ in range(-(-options.jobs // options.per_driver)):
            drivers.start()
        begun = time.time()
        with dev.instance() as instance:
            _begin(instance, site)
        wait_for(lambda: len(drivers.holders()) == options.jobs, "all jobs to run", seconds=_PATIENCE, poll=1)
        _note(f"all jobs run after {time.time() - begun:.0f} s")
        kills, usage = _kill_again_and_again(options, drivers, dev, doors, database)
        with dev.instance() as instance:
            told = {"ticks": _ticks(instance), "resumed": _resumed(instance, kills, drivers)}
    return {
        "options": {
            name: value for name, value in vars(options).items() if name not in {"output", "page", "directory"}
        },
        "summary": _summary(options, kills, usage, told, drivers),
        "kills": kills,
        "usage": usage,
        **told,
    }


def _begin(instance: dg.DagsterInstance, site: Site) -> None:
    """Put the first run of each job on record, which costs far less than a launch by the webserver."""
    for number in range(site.jobs):
        name = f"{site.job(number)}_job"
        run = dg.DagsterRun(job_name=name, run_id=str(uuid.uuid4()), tags={names.JOB_TAG: site.job(number)})
        site.order(instance.add_run(run))


@contextmanager
def _doors(latency: float) -> Iterator[tuple[GcsServer, GcsServer]]:
    """Two ways into one bucket, for the drivers and for the sensor, with a log each."""
    with GcsServer(latency) as first, GcsServer(latency) as second:
        first.create_bucket("checkpoints")
        second._api = GcsApi(first._buckets, second._asked)  # noqa: SLF001 - one bucket, two logs
        yield first, second


def _dagster(home: Path, site: Site, url: str) -> DagsterDev:
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8"))
    settings["concurrency"]["runs"]["max_concurrent_runs"] = 2 * site.jobs
    settings["code_servers"] = {"local_startup_timeout": int(_PATIENCE)}
    settings["storage"] = {"postgres": {"postgres_url": url}}
    settings["run_launcher"] = {"module": _SITE, "class": "DriversWithoutSpark"}
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    (home / "workspace.yaml").write_text(
        yaml.safe_dump({"load_from": [{"python_module": {"module_name": _SITE}}]}), encoding="utf-8"
    )
    environment = {
        SITE: json.dumps(asdict(site)),
        "PYTHONPATH": str(ROOT),
        # For the code location to load. Ticks have Dagster's own limit.
        **dict.fromkeys(
            ("DAGSTER_GRPC_TIMEOUT_SECONDS", "DAGSTER_REPOSITORY_GRPC_TIMEOUT_SECONDS"), str(int(_PATIENCE))
        ),
    }
    return DagsterDev(home / "workspace.yaml", home / "dagster", environment, patience=_PATIENCE)


class _Drivers:
    """The processes that drive jobs."""

    def __init__(self, site: Site, options: dict[str, Any], jobs: int, told: Path, seed: int) -> None:
        self._of_each = (site, options, jobs)
        self._told = told
        self._random = random.Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["benchmarks.drivers.many_jobs_driver"])
        self._living: list[BaseProcess] = []
        self._begun = 0

    def start(self) -> None:
        """Start one more, which takes the next orders."""
        self._begun += 1
        told = self._told / f"{self._begun:05}"
        process = self._context.Process(target=drive, args=(*self._of_each, told), daemon=True)
        process.start()
        self._living.append(process)

    def kill(self) -> dict[str, Any]:
        """SIGKILL for one of those that drive as many jobs as they can, and another one in its place."""
        jobs = Counter(note["pid"] for note in self.holders().values())
        full = [process for process in self._living if jobs[process.pid or 0] == self._of_each[2]]
        victim = self._random.choice(full or [process for process in self._living if jobs[process.pid or 0]])
        assert victim.pid is not None
        lost = {job: note["run"] for job, note in self.holders().items() if note["pid"] == victim.pid}
        self.start()
        os.kill(victim.pid, signal.SIGKILL)
        killed_at = time.time()
        victim.join()
        self._living.remove(victim)
        return {"at": killed_at, "pid": victim.pid, "jobs": lost}

    def notes(self) -> list[dict[str, Any]]:
        """All that drivers have told, by time."""
        lines = [line for file in self._told.iterdir() for line in file.read_text(encoding="utf-8").splitlines()]
        found = sorted(map(json.loads, lines), key=lambda note: note["at"])
        if failed := [note for note in found if note["what"] == "failed"]:
            raise RuntimeError(failed[0]["why"])
        return found

    def holders(self) -> dict[str, dict[str, Any]]:
        """The newest start of each job."""
        return {note["job"]: note for note in self.notes() if note["what"] == "started"}


def _kill_again_and_again(
    options: argparse.Namespace,
    drivers: _Drivers,
    dev: DagsterDev,
    doors: Sequence[GcsServer],
    database: str,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Let the measured minutes pass, and wait until every job that was killed has been resumed."""

    def resumed() -> bool:
        holders = drivers.holders()
        return all(holders[job]["run"] != run for kill in kills for job, run in kill["jobs"].items())

    seen = [len(door.log) for door in doors]
    used, sizes, begun = _cpu(dev), _sizes(database), time.time()
    kills: list[dict[str, Any]] = []
    while time.time() < begun + 60 * options.minutes:
        time.sleep(max(0.0, min(options.every, begun + 60 * options.minutes - time.time())))
        if time.time() < begun + 60 * options.minutes or not kills:
            kills.append(drivers.kill())
            _note(f"kill {len(kills)}: {len(kills[-1]['jobs'])} jobs; load {os.getloadavg()[0]:.1f}")
    wait_for(resumed, "all killed jobs to be resumed", seconds=_PATIENCE, poll=1)
    asked = [
        Counter(request.kind for request in list(door.log)[first:]) for door, first in zip(doors, seen, strict=True)
    ]
    grown = {name: size - sizes.get(name, 0) for name, size in _sizes(database).items()}
    now_used = _cpu(dev)
    return kills, {
        "begun": begun,
        "seconds": time.time() - begun,
        "requests of drivers": asked[0],
        "requests of the sensor": asked[1],
        "grown": {name: size for name, size in sorted(grown.items(), key=lambda item: -item[1]) if size},
        "cpu": {name: seconds - used[name] for name, seconds in now_used.items()},
        "load": os.getloadavg()[0],
    }


def _cpu(dev: DagsterDev) -> dict[str, float]:
    """CPU seconds so far of Dagster's processes, by what they are."""
    kinds = {"dagster._daemon": "daemon", "api grpc": "code server"}
    found = dict.fromkeys(kinds.values(), 0.0)
    for process in dev.processes():
        try:
            line = " ".join(process.cmdline())
            times = process.cpu_times()
        except psutil.Error:
            continue
        for mark, kind in kinds.items():
            if mark in line:
                found[kind] += times.user + times.system
    return found


def _sizes(database: str) -> dict[str, int]:
    return dict(rows(database, _TABLES))


def _ticks(instance: Any) -> list[dict[str, Any]]:
    """The sensor's ticks, by time, of all that are over."""
    found = []
    for state in instance.all_instigator_state():
        if state.instigator_name.endswith("_resume_sensor"):
            found += instance.get_ticks(state.instigator_origin_id, state.selector_id)
    return sorted(
        (
            {
                "begun": tick.timestamp,
                "ended": tick.end_timestamp,
                "status": tick.status.value,
                "runs": len(tick.run_ids),
            }
            for tick in found
            if tick.end_timestamp is not None
        ),
        key=lambda tick: tick["begun"],
    )


def _resumed(instance: Any, kills: list[dict[str, Any]], drivers: _Drivers) -> list[dict[str, Any]]:
    """For each job that was killed: when its next run was launched, and when that run went on from where."""
    ticks = _ticks(instance)
    notes = drivers.notes()
    launched = {
        record.dagster_run.tags[names.PARENT_RUN_TAG]: record
        for record in instance.get_run_records()
        if names.PARENT_RUN_TAG in record.dagster_run.tags
    }
    starts = {note["run"]: note for note in notes if note["what"] == "started"}
    found = []
    for kill in kills:
        after = [tick for tick in ticks if tick["begun"] >= kill["at"]]
        for job, run in kill["jobs"].items():
            record = launched[run]
            created = record.create_timestamp.timestamp()
            start = starts[record.dagster_run.run_id]
            acknowledged = [
                tuple(note["key"])
                for note in notes
                if note["what"] == "completed" and note["job"] == job and note["at"] <= start["at"]
            ]
            restored = tuple(start["restored"] or (0, 0))
            if restored < max(acknowledged, default=(0, 0)):
                raise RuntimeError(f"{job} went on from {restored}, and {max(acknowledged)} was acknowledged")
            ticks_needed = sum(tick["begun"] <= created for tick in after)
            found.append(
                {"job": job, "ticks": ticks_needed, "launched": created - kill["at"], "runs": start["at"] - kill["at"]}
            )
    return found


def _summary(
    options: argparse.Namespace,
    kills: list[dict[str, Any]],
    usage: dict[str, Any],
    told: dict[str, Any],
    drivers: _Drivers,
) -> dict[str, float]:
    within = [tick for tick in told["ticks"] if tick["begun"] >= usage["begun"]]
    quiet = [tick["ended"] - tick["begun"] for tick in within if tick["status"] == "SKIPPED"]
    busy = [(tick["ended"] - tick["begun"], tick["runs"]) for tick in within if tick["runs"]]
    minutes, resumed = usage["seconds"] / 60, told["resumed"]
    completed = [note for note in drivers.notes() if note["what"] == "completed" and note["at"] >= usage["begun"]]
    return {
        "jobs": options.jobs,
        "minutes": minutes,
        "jobs killed": len(resumed),
        "kills": len(kills),
        "ticks until a job's next run is launched, most": max(item["ticks"] for item in resumed),
        "ticks until a job's next run is launched, mean": statistics.mean(item["ticks"] for item in resumed),
        "seconds until it is launched, median": statistics.median(item["launched"] for item in resumed),
        "seconds until it is launched, most": max(item["launched"] for item in resumed),
        "seconds until it goes on, median": statistics.median(item["runs"] for item in resumed),
        "seconds until it goes on, most": max(item["runs"] for item in resumed),
        "ticks that failed": sum(tick["status"] == "FAILURE" for tick in within),
        "ticks without a launch": len(quiet),
        "seconds of a tick without a launch, median": statistics.median(quiet or [0]),
        "seconds of a tick without a launch, least": min(quiet or [0]),
        "seconds of a tick without a launch, most": max(quiet or [0]),
        "ticks with launches": len(busy),
        "seconds of a tick for each launch": sum(item[0] for item in busy) / max(sum(item[1] for item in busy), 1),
        "CPU seconds of the code server a tick": usage["cpu"]["code server"] / max(len(within), 1),
        "CPU seconds of the daemon a minute": usage["cpu"]["daemon"] / minutes,
        "requests of the sensor a minute": usage["requests of the sensor"].total() / minutes,
        "requests of the sensor a tick": usage["requests of the sensor"].total() / max(len(within), 1),
        "requests of the drivers a minute": usage["requests of drivers"].total() / minutes,
        "checkpoints completed": len(completed),
        "kB of the database": sum(usage["grown"].values()) / 1e3,
        "load average at the end": usage["load"],
    }


def _page(report: dict[str, Any]) -> str:
    """The page of the documentation."""
    options = report["options"]
    command = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    return f"""# Many jobs under one Dagster

Made by `python benchmarks/many_jobs.py {command} --page docs/reference/many-jobs.md` on {time.strftime("%Y-%m-%d")},
with {os.cpu_count()} processors. A real `dagster dev` with its instance in PostgreSQL has {options["jobs"]:,} running
jobs without Spark, with their checkpoints in a bucket that takes {1000 * options["latency"]:g} ms a request. Each
{options["every"]:g} s a process that drives up to {options["per_driver"]} of them gets SIGKILL. Every job that was
killed went on from its newest checkpoint.

*Ticks until a job's next run is launched* are those that began after the kill; where it is 0, the tick that was under
way found the dead job. *kB of the database* is the growth of all tables of the instance with their indexes.

{_table(report["summary"])}
"""


def _table(summary: dict[str, float]) -> str:
    lines = [f"| {what} | {figure:,.{2 if figure % 1 else 0}f} |" for what, figure in summary.items()]
    return "\n".join(["| figure | |", "|---|---|", *lines])


def _note(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
