"""A Dagster instance with many runs, and a job with many retained checkpoints: ticks, reports, commands, pages.

    python benchmarks/full_instance.py --output full_instance.json --page docs/reference/full-instance.md

``--runs`` runs of ``--jobs`` jobs are put on the record of a real instance, in SQLite and in PostgreSQL; every second
of them is of one job, which has ``--checkpoints`` retained checkpoints in a local directory, written without Spark.
This library's own reporter makes them partitions of the job's asset. Then are measured, the median of ``--rounds``
each:

* ``tick, ...``: the resume sensor of all jobs, of which this one has to be resumed, was just ended, or is over;
* ``report of one more``: what the reporter does after one more checkpoint; ``one more, one less`` with retention;
* ``report of nothing new``: as at each start of a run;
* ``status``, ``list``: the commands, which ask the storage alone;
* ``newest partition seen``, ``its way back seen``, ``overview seen``: in Chromium.

Processor seconds are of the process that is measured, and for pages of Dagster's webserver. The run fails when a page
does not show what it should, or a report leaves anything but the retained checkpoints.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dagster as dg  # noqa: E402 - below the path
import psutil  # noqa: E402
import yaml  # noqa: E402

from benchmarks import age  # noqa: E402
from benchmarks.drivers.full_instance_site import STORAGE, definitions  # noqa: E402
from dagster_ckpt.checkpoint import CheckpointCatalog, End  # noqa: E402
from dagster_ckpt.clock import SystemClock, iso  # noqa: E402
from dagster_ckpt.config.retention import Retention  # noqa: E402
from dagster_ckpt.filesystem import open_filesystem  # noqa: E402
from dagster_ckpt.orchestration import names  # noqa: E402
from dagster_ckpt.orchestration.reporting import CheckpointReporter  # noqa: E402
from dagster_ckpt.orchestration.rollback import Launchpad  # noqa: E402
from dagster_ckpt.testing.dagster_dev import DagsterDev  # noqa: E402
from tests.servers.postgres import running  # noqa: E402
from tools.screenshots import DagsterUI, browse, find_chromium  # noqa: E402

_SITE = "benchmarks.drivers.full_instance_site"
_STATES = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_PATIENCE = 600.0
#: Partitions in one statement; SQLite takes some thousand.
_CHUNK = 500


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument(
        "--told",
        type=int,
        help="materialize the newest so many checkpoints alone; the others are partitions only. Saves most of the time",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--storages", nargs="+", choices=["SQLite", "PostgreSQL"], default=["SQLite", "PostgreSQL"])
    parser.add_argument("--beside", type=Path, help="the report of another run: its figures are shown, too")
    parser.add_argument("--directory", type=Path, help="a new one, for logs; by default a temporary one")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--page", type=Path, help="write a Markdown page")
    options = parser.parse_args()
    find_chromium()  # its absence is told before minutes are spent
    records: list[dict[str, Any]] = []
    if options.beside:
        records += json.loads(options.beside.read_text(encoding="utf-8"))["records"]
    with ExitStack() as stack:
        home = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="full-instance-")))
        for storage in options.storages:
            for record in _measured(options, home.absolute() / storage, storage):
                records.append({"storage": storage, **record})
                print(records[-1], file=sys.stderr, flush=True)
    given = {
        name: value for name, value in vars(options).items() if name not in {"output", "page", "directory", "beside"}
    }
    if options.output:
        report = {"options": given, "records": records}
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if options.page:
        options.page.write_text(_page(given, records), encoding="utf-8")
    print(_table(records))
    return 0


def _measured(options: argparse.Namespace, home: Path, storage: str) -> Iterator[dict[str, Any]]:
    checkpoints = home / "checkpoints"
    checkpoints.mkdir(parents=True)
    _, newest = age.fill(checkpoints, "100 starts", options.checkpoints)
    catalog = CheckpointCatalog(open_filesystem(str(checkpoints)), age.JOB)
    with ExitStack() as stack:
        settings: dict[str, Any] = {}
        if storage == "PostgreSQL":
            server = stack.enter_context(running())
            settings = {"storage": {"postgres": {"postgres_url": server.url(server.database())}}}
        dev = _dagster(home, checkpoints, settings)
        with dev.instance() as instance:
            told = type(instance.run_storage).__name__
            if told != ("PostgresRunStorage" if settings else "SqliteRunStorage"):
                raise RuntimeError(f"the runs are in {told}")
            each = _each(age.measured(_put_runs, instance, options), options.runs)
            yield {"what": f"{options.runs:,} runs put on record, each", **each}
            yield from _reports(options, instance, catalog, newest)
            yield from _ticks(options, instance, catalog, str(checkpoints))
        for command in ("status", "list"):
            runs = [
                age.measured(age.run_command, command, age.JOB, "--path", str(checkpoints))
                for _ in range(options.rounds)
            ]
            yield {"what": f"dagster-ckpt {command}", **age.median(runs)}
        with dev, browse(dev) as ui:
            yield from _pages(options, dev, ui, catalog)


def _dagster(home: Path, checkpoints: Path, settings: dict[str, Any]) -> DagsterDev:
    """A Dagster that is not started, whose instance can be opened."""
    given = yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8"))
    dagster = home / "dagster"
    dagster.mkdir()
    for place in (home, dagster):
        (place / "dagster.yaml").write_text(yaml.safe_dump({**given, **settings}), encoding="utf-8")
    (home / "workspace.yaml").write_text(
        yaml.safe_dump({"load_from": [{"python_module": {"module_name": _SITE}}]}), encoding="utf-8"
    )
    environment = {STORAGE: str(checkpoints), "PYTHONPATH": str(ROOT)}
    return DagsterDev(home / "workspace.yaml", dagster, environment, patience=_PATIENCE)


def _put_runs(instance: dg.DagsterInstance, options: argparse.Namespace) -> None:
    """Every second run is of the one job; the newest of them is that of its last start, and has failed."""
    others = _others(options.jobs)

    def put(job: str, run_id: str, status: dg.DagsterRunStatus) -> None:
        tags = {names.JOB_TAG: job, names.MAX_RETRIES_TAG: "0", names.ATTEMPT_TAG: "1"}
        instance.add_run(dg.DagsterRun(job_name=f"{job}_job", run_id=run_id, status=status, tags=tags))

    with ThreadPoolExecutor(4) as pool:
        of = [
            others[number // 2 % len(others)] if number % 2 and others else age.JOB
            for number in range(options.runs - 1)
        ]
        states = itertools.cycle(_STATES)
        list(pool.map(put, of, (str(uuid.uuid4()) for _ in of), states))
    put(age.JOB, age.RUN, dg.DagsterRunStatus.FAILURE)
    if instance.get_runs_count() != options.runs:
        raise RuntimeError(f"{instance.get_runs_count()} runs are on record")


def _others(jobs: int) -> list[str]:
    return [f"job_{number:06}" for number in range(jobs - 1)]


def _reports(
    options: argparse.Namespace, instance: dg.DagsterInstance, catalog: CheckpointCatalog, newest: Any
) -> Iterator[dict[str, Any]]:
    """Every checkpoint is told on its own, as while the job lived; then more of them."""
    (asset,) = definitions([age.JOB], catalog.filesystem.url)[1]
    reporter = CheckpointReporter(
        instance,
        instance.report_runless_asset_event,
        asset.checkpoints_key,
        asset.partitions_name,
        catalog,
        SystemClock(),
        0,
        Launchpad(_SITE, age.JOB),
    )

    def assert_shown() -> None:
        shown = set(instance.get_dynamic_partitions(asset.partitions_name))
        if shown != {names.partition_key(item) for item in store.retained}:
            raise RuntimeError("the partitions are not the retained checkpoints")

    stores: list[Any] = []
    yield {"what": "start of a run, without Spark", **age.measured(age.start, catalog.filesystem, stores)}
    (store,) = stores
    reporter.holds(store.epoch)
    told = options.told or options.checkpoints
    keys = [names.partition_key(item) for item in store.retained]
    for first in range(0, len(keys) - told, _CHUNK):
        instance.add_dynamic_partitions(asset.partitions_name, keys[first : min(first + _CHUNK, len(keys) - told)])
    figures = age.measured(_tell_all, reporter, store.retained)
    yield {"what": f"report of {told:,}, each", **_each(figures, told)}
    assert_shown()
    runs = [age.measured(reporter.began, store.retained) for _ in range(options.rounds)]
    yield {"what": "report of nothing new", **age.median(runs)}
    runs = []
    for _ in range(options.rounds):
        age.complete(store, newest)
        runs.append(age.measured(reporter.completed, store.retained))
    yield {"what": "report of one more", **age.median(runs)}
    assert_shown()
    runs = []
    for _ in range(options.rounds):
        age.complete(store, newest)
        gone = store.subsume(Retention(len(store.retained) - 1))
        runs.append(age.measured(reporter.subsumed, gone, store.retained))
    yield {"what": "report of one more, one less", **age.median(runs)}
    assert_shown()


def _tell_all(reporter: CheckpointReporter, retained: list[Any]) -> None:
    """As many reports as it takes: one ends after some seconds."""
    reporter.began(retained)
    while not reporter.is_told:
        reporter.flush()


def _each(figures: dict[str, float], of: int) -> dict[str, float]:
    return {name: figure / of for name, figure in figures.items()}


def _ticks(
    options: argparse.Namespace, instance: dg.DagsterInstance, catalog: CheckpointCatalog, storage: str
) -> Iterator[dict[str, Any]]:
    """The sensor's ticks: one that launches the job's next run, the first after its end, and the later ones."""
    defs, _ = definitions([age.JOB, *_others(options.jobs)], storage)
    sensor = defs.resolve_sensor_def(f"{age.JOB}_resume_sensor")
    cursor: str | None = None
    resources = {"checkpoint_storage": defs.resources["checkpoint_storage"]} if defs.resources else {}

    def tick(*, launches: bool) -> None:
        nonlocal cursor
        context = dg.build_sensor_context(instance=instance, cursor=cursor, resources=resources, definitions=defs)
        told = sensor.evaluate_tick(context)
        cursor = told.cursor
        if bool(told.run_requests) != launches or "could not" in (told.skip_message or ""):
            raise RuntimeError(told)

    epochs = catalog.records.epochs
    claim = epochs.read_claim(epochs.highest())
    assert claim is not None
    age.beat(catalog.filesystem, [age.JOB], [claim], 0, stopped=True)
    runs = [age.measured(lambda: tick(launches=True)) for _ in range(options.rounds)]
    yield {"what": "tick that launches the next run", **age.median(runs)}
    epochs.record_end(
        claim.epoch, End("FINISHED", "the stream is at its end", discarded=False, ended_at=iso(time.time()))
    )
    yield {"what": "first tick after the job's end", **age.measured(lambda: tick(launches=False))}
    runs = [age.measured(lambda: tick(launches=False)) for _ in range(options.rounds)]
    yield {"what": f"tick with nothing to do, {options.jobs:,} jobs", **age.median(runs)}


def _pages(
    options: argparse.Namespace, dev: DagsterDev, ui: DagsterUI, catalog: CheckpointCatalog
) -> Iterator[dict[str, Any]]:
    chosen = catalog.choice()
    assert chosen is not None
    newest = catalog.completed(chosen[1].job_id)[0][-1]
    key = names.partition_key(newest)

    def seen() -> None:
        ui.newest_partition(age.JOB, key)

    def way_back() -> None:
        ui.page.get_by_text(key, exact=True).first.click()
        ui.page.get_by_role("link", name=f"go back to {newest.name}").first.wait_for()

    def overview() -> None:
        ui.checkpoints(age.JOB)
        ui.page.get_by_text(key, exact=True).first.wait_for()

    seen()  # what the webserver remembers from then on
    server = _webserver(dev)
    for what, shows in (("newest partition seen", seen), ("its way back seen", way_back), ("overview seen", overview)):
        runs = []
        for _ in range(options.rounds):
            if shows is way_back:
                seen()
            before, begun = _cpu(server), time.monotonic()
            shows()
            runs.append({"seconds": time.monotonic() - begun, "cpu": _cpu(server) - before})
        yield {"what": what, **age.median(runs)}
    if ui.errors:
        raise RuntimeError(ui.errors)


def _webserver(dev: DagsterDev) -> psutil.Process:
    return next(process for process in dev.processes() if "dagster_webserver" in " ".join(process.cmdline()))


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _page(options: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """The page of the documentation."""
    told = f"; the newest {options['told']:,} are materialized" if options["told"] else ""
    return f"""# A full instance of Dagster

Made by `python benchmarks/full_instance.py --page docs/reference/full-instance.md` on {time.strftime("%Y-%m-%d")}, with
{os.cpu_count()} processors and other work on them: believe the processor seconds. A real instance of Dagster has
{options["runs"]:,} runs of {options["jobs"]:,} jobs. Every second run is of one job, which has
{options["checkpoints"]:,} retained checkpoints of {age.FILES} files, all of them partitions of its asset{told}.

A *tick* is one of the resume sensor of all jobs. A *report* is what a run tells Dagster. Pages are of `JOB_checkpoints`
in Chromium, measured until what is asked for is seen; their processor seconds are those of Dagster's webserver. Figures
are medians of {options["rounds"]}.

{_table(records)}
"""


def _table(records: list[dict[str, Any]]) -> str:
    storages = list(dict.fromkeys(record["storage"] for record in records))
    found = {(record["what"], record["storage"]): record for record in records}
    heads = [f"{storage}, {unit}" for storage in storages for unit in ("s", "CPU s")]
    lines = [f"| what | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for what in dict.fromkeys(record["what"] for record in records):
        figures = [found[what, storage][name] for storage in storages for name in ("seconds", "cpu")]
        lines.append(f"| {what} | {' | '.join(f'{figure:.3f}' for figure in figures)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
