"""How long a failure stops a stream: from the failure to the first newly committed batch, split into its parts.

    python benchmarks/recovery.py --flink 10 --whole-standby 10 --output recovery.json
    python benchmarks/recovery.py --flink 10 --whole-standby 10 --output recovery.json --go-on  # after an interruption
    python benchmarks/recovery.py --report recovery.json --before older.json --page docs/reference/recovery.md

Every case fails the same stream in mid-batch: each id of landing files once, with the ids seen before in RocksDB, and a
checkpoint each second. Ways to fail:

* ``new run``: an asset under a real ``dagster dev``. The run's process gets SIGKILL and its live checkpointLocation is
  deleted, so the sensor launches a new run, which restores a retained checkpoint. ``--pairs`` does this without and
  with a class archive, in turns (A B B A ...), each in a Dagster of its own. All other kinds have an archive, unless
  ``--no-archive`` is given.
* ``whole standby``: the same beside a standby for the whole job, which is warm and idle at the kill.
* ``jvm``: a driver whose JVM gets SIGKILL; the same process starts another JVM.
* ``standby``: a driver gets SIGKILL, and another driver begins at that moment on the same host, without and with a
  standby JVM in turns. Only with ``--standby PAIRS``.
* ``elsewhere``: a driver and its JVM get SIGKILL. At that moment another driver begins, as if on another host (UTS and
  PID namespaces of its own) and in another working directory. It waits for the lease of the dead run, 5 s.
* ``standby elsewhere``: a run, its Dagster and all that belongs to them get SIGKILL at once, and the live
  checkpointLocation is deleted. A standby as if on another host takes the job over when the lease, 5 s, is over.
* ``in run``: a ``StreamingRun`` whose query throws in a task; it restarts in the same process and Spark application.
* ``Flink: everything``, ``Flink: TaskManager``, ``Flink: task``: Flink with the same stream, killed as ``new run``,
  ``jvm`` and ``in run`` are. Only with ``--flink CASES``, which fetches Flink (330 MB) and needs a Java compiler.

A case that fails is in the report as an error; its kind is begun once more, and the others go on. The exit status is 0
only if none failed.

All times are differences of timestamps on this machine: Dagster's event log, the run's own log lines, the control
files of the storage, the modification times of ``commits/``; of Flink the moment that a file of the sink is there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.failures.case import Case, table  # noqa: E402
from benchmarks.failures.driven import Driven  # noqa: E402
from benchmarks.failures.flink import Flink  # noqa: E402
from benchmarks.failures.in_run import InRun  # noqa: E402
from benchmarks.failures.new_run import LostHost, NewRun  # noqa: E402
from benchmarks.failures.page import write_page  # noqa: E402
from benchmarks.failures.results import Results  # noqa: E402
from dagster_ckpt.spark import make_class_archive  # noqa: E402
from dagster_ckpt.spark.standby.place import directory as standbys  # noqa: E402

#: Seconds of the lease of a run that is taken over from another host.
LEASE = 5.0
#: The options that the report has.
_PARAMETERS = (
    *("cases", "whole_standby", "pairs", "standby", "jvm", "restarts", "elsewhere", "standby_elsewhere", "flink"),
    *("checkpoints", "every", "keys", "delay", "no_archive"),
)


class Benchmark:
    """The kinds of failures, each in a directory of its own.

    Args:
        results: gets the cases.
        directory: of everything.
        options: of the command line.
    """

    def __init__(self, results: Results, directory: Path, options: argparse.Namespace) -> None:
        self._results, self._directory, self._options = results, directory, options
        self._keys, self._checkpoints = options.keys, options.checkpoints
        self._cache = "" if options.no_archive else str(directory / "cache")

    def run(self) -> None:
        """Let everything fail that was asked for."""
        asked, take = self._options, self._results.take
        os.environ["DAGSTER_CKPT_CACHE"] = self._cache
        if self._cache:
            make_class_archive({}, wait=True)
        take("new run", "New run: SIGKILL to its process, live location deleted", asked.cases, self._new_run)
        take("whole standby", "The same, beside a standby for the whole job", asked.whole_standby, self._whole_standby)
        take("archive", "New run, without and with a class archive in turns", asked.pairs, self._archive)
        take("standby", "SIGKILL to a driver, without and with a standby JVM in turns", asked.standby, self._standby)
        take("jvm", "Restart inside the run: SIGKILL to the JVM, live location deleted", asked.jvm, self._jvm)
        lease = f"with a lease of {LEASE:g} s"
        take("elsewhere", f"Another host takes over, {lease}", asked.elsewhere, self._elsewhere)
        take(
            "standby elsewhere", f"A standby on another host, {lease}", asked.standby_elsewhere, self._standby_elsewhere
        )
        take("in run", "Restart inside the run: a task throws", asked.restarts, self._in_run)
        for what in Flink.KINDS:
            kind = f"Flink: {what}"
            take(kind, kind, asked.flink, partial(self._flink, what))

    def _new_run(self, tried: int, missing: int) -> None:
        place = self._place("new-run", tried)
        NewRun(place, self._keys, self._cache).run(missing, self._checkpoints, self._add("new run"))

    def _whole_standby(self, tried: int, missing: int) -> None:
        beside = NewRun(self._place("whole-standby", tried), self._keys, self._cache, standby=True)
        beside.run(missing, self._checkpoints, self._add("whole standby"))

    def _archive(self, tried: int, missing: int) -> None:
        def one(place: Path, archive: bool, done: Callable[[Case], None]) -> None:
            NewRun(place, self._keys, self._cache if archive else "").run(1, self._checkpoints, done)

        self._in_pairs("archive", self._place("archive", tried), missing, one)

    def _standby(self, tried: int, missing: int) -> None:
        place = self._place("standby", tried)
        place.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(place)  # where standbys listen

        def one(place: Path, standby: bool, done: Callable[[Case], None]) -> None:
            Driven(place, self._keys, standby=standby).run(1, self._checkpoints, done)
            for left in standbys().glob("*.sock"):
                left.unlink()

        self._in_pairs("standby", place, missing, one)

    def _in_pairs(
        self, kind: str, place: Path, pairs: int, one: Callable[[Path, bool, Callable[[Case], None]], None]
    ) -> None:
        """Cases without something and with it, in turns (A B B A ...), each in a directory of its own."""
        for pair in range(pairs):
            found: list[Case] = []
            order = (False, True) if pair % 2 == 0 else (True, False)
            for with_it in order:
                one(place / f"{pair}-{with_it}", with_it, found.append)
            for with_it, case in zip(order, found, strict=True):
                self._results.add(kind if with_it else f"no {kind}", case)

    def _jvm(self, tried: int, missing: int) -> None:
        Driven(self._place("jvm", tried), self._keys).run(missing, self._checkpoints, self._add("jvm"))

    def _elsewhere(self, tried: int, missing: int) -> None:
        driven = Driven(self._place("elsewhere", tried), self._keys, LEASE, elsewhere=True)
        driven.run(missing, self._checkpoints, self._add("elsewhere"))

    def _standby_elsewhere(self, tried: int, missing: int) -> None:
        place = self._place("standby-elsewhere", tried)
        for host in range(missing):
            lost = LostHost(place / f"{host}", self._keys, self._cache, LEASE)
            lost.run(1, self._checkpoints, self._add("standby elsewhere"))

    def _in_run(self, tried: int, missing: int) -> None:
        asked = self._options
        failing = InRun(self._place("in-run", tried), self._keys, missing, asked.every, asked.delay)
        failing.run(self._add("in run"))

    def _flink(self, what: str, tried: int, missing: int) -> None:
        flink = Flink(self._place(f"flink-{what}", tried), what, self._keys)
        flink.run(missing, self._checkpoints, self._add(f"Flink: {what}"))

    def _place(self, name: str, tried: int) -> Path:
        return self._directory / f"{name}-{tried}"

    def _add(self, kind: str) -> Callable[[Case], None]:
        return partial(self._results.add, kind)


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5, help="kills of the run process; 0 to leave them out")
    parser.add_argument("--whole-standby", type=int, default=0, help="kills beside a standby for the whole job")
    parser.add_argument("--pairs", type=int, default=0, help="kills without and with a class archive, in turns")
    parser.add_argument("--no-archive", action="store_true", help="make no class archive")
    parser.add_argument("--standby", type=int, default=0, help="kills without and with a standby JVM, in turns")
    parser.add_argument("--jvm", type=int, default=5, help="kills of a driver's JVM; 0 to leave them out")
    parser.add_argument("--elsewhere", type=int, default=5, help="takeovers from another host; 0 to leave them out")
    parser.add_argument("--standby-elsewhere", type=int, help="the same with a standby there; default: as --elsewhere")
    parser.add_argument("--flink", type=int, default=0, help="failures of each kind of Flink, which is fetched")
    parser.add_argument("--checkpoints", type=int, default=3, help="completed checkpoints before a kill")
    parser.add_argument("--restarts", type=int, default=5, help="failures of the query; 0 to leave them out")
    parser.add_argument(
        "--every", type=int, default=15, help="batches between two failures of the query, with a checkpoint each second"
    )
    parser.add_argument("--keys", type=int, default=100_000, help="keys of state at the begin of the stream")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds the restart strategy waits, within the run")
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts" / "recovery", help="emptied first")
    parser.add_argument("--output", type=Path, help="JSON, written after each case; default: recovery.json there")
    parser.add_argument("--go-on", action="store_true", help="keep the cases of an earlier run that the output has")
    parser.add_argument("--page", type=Path, help="write a Markdown page and its plot in ../images")
    parser.add_argument("--before", type=Path, help="a report of an earlier state, for the page")
    parser.add_argument("--report", type=Path, help="run nothing, and write the page of an earlier run's report")
    options = parser.parse_args()
    if options.report:
        write_page(options.page, json.loads(options.report.read_text(encoding="utf-8")), options.before)
        return 0
    if options.standby_elsewhere is None:
        options.standby_elsewhere = options.elsewhere
    if options.pairs and options.no_archive:
        parser.error("--pairs compares with a class archive")
    directory: Path = options.directory.absolute()
    output: Path = (options.output or directory / "recovery.json").absolute()
    known = json.loads(output.read_text(encoding="utf-8")) if options.go_on else None
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    results = Results(output, {name: getattr(options, name) for name in _PARAMETERS} | {"lease": LEASE}, known)
    Benchmark(results, directory, options).run()
    print(f"\n{table(results.cases)}")
    for failed in results.failed:
        print(f"failed: {failed}")
    if options.page:
        write_page(options.page, results.report(), options.before)
    print(f"\nreport: {output}")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
