"""Change the code at one place at a time, and find out whether the closest fast tests notice.

``make test-mutants`` calls this tool; ``CONTRIBUTING.md`` says how. Cosmic Ray makes the changes. Which tests run for
a change is measured: every fast test file runs once under coverage, and a change is tried with the tests that run the
changed line, those of the module's own directory first, for at most some seconds. Each try is a fork of a process that
has imported everything but the project, so that a try costs little more than its tests.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
sys.path.insert(0, str(PROJECT))

from tools.code_changes import Mutant, mutant, places  # noqa: E402

sys.path.remove(str(PROJECT))  # a fork imports the project from its copy alone

WORK = PROJECT / "build" / "mutants"
PACKAGE = "dagster_ckpt"
#: What is tried, and what the names of the test files begin with that are run for it.
FOLDERS = {
    "checkpoint": ("tests/unit/checkpoint/",),
    "spark/sinks": ("tests/unit/spark/sinks/",),
    "filesystem": ("tests/unit/filesystem/", "tests/unit/spark/live/test_private_directories"),
    "resume/decision.py": ("tests/unit/resume/test_resume_decision",),
}
#: What fast tests do not reach because it talks to a server: what names of modules begin with, and how pytest is called
#: for the tests that have the server. A change is tried with these if no fast test runs its line.
WITH_SERVER = {
    "filesystem/hdfs/": ("tests/system/hdfs/test_hdfs.py", "-m", "slow"),
    "filesystem/buckets/azure": (
        *("tests/unit/filesystem/buckets/azure", "tests/unit/filesystem/buckets/test_stores.py"),
        *("-m", "integration", "-k", "azur"),
    ),
}
#: What is not tried, though it lies in these folders: tables of Delta and Iceberg. Their tests are whole jobs on Spark,
#: minutes for each change, and each of the two needs another release of Spark.
LEFT_OUT = frozenset(
    f"spark/sinks/{name}.py" for name in ("delta/delta_sink", "delta/table", "iceberg/iceberg_sink", "iceberg/table")
)
#: Changes that no test can notice, one a line: module, operator, old line, new line; ``*`` for any new line.
EQUIVALENT = HERE / "equivalent_mutants.txt"
#: What tests and code import, and no change touches: imported once, before any fork.
IMPORTED_ONCE = (
    *("hypothesis", "psutil", "yaml", "pydantic", "rich.console", "click", "fsspec", "requests", "flask", "pandas"),
    *("pyarrow", "pyarrow.dataset", "pyspark.sql", "gcsfs", "s3fs", "adlfs", "google.auth", "moto.server", "dagster"),
)


@dataclass(frozen=True)
class Test:
    """A fast test.

    Attributes:
        seconds: how long the test took.
        lines: which lines of which module it ran.
    """

    name: str
    seconds: float
    lines: dict[str, list[int]]
    has_server: bool = False


def closest(one: Mutant, tests: Sequence[Test], budget: float) -> list[str]:
    """The tests for a change: those that run its line, else (a constant) of its module, then of its folder.

    Tests with a server are for lines that no other test runs.
    """
    own = f"tests/unit/{one.module.rpartition('/')[0]}/"
    running = [test for test in tests if one.line in test.lines.get(one.module, ())]
    running = [test for test in running if not test.has_server] or running
    if not running:
        running = [test for test in tests if test.lines.get(one.module) or test.name.startswith(own)]
    running.sort(key=lambda test: test.seconds)
    variants: Counter[str] = Counter()
    turns: dict[str, int] = {}
    for test in running:  # one variant of every test comes before a second variant of any
        base = test.name.partition("[")[0]
        turns[test.name] = variants[base]
        variants[base] += 1
    running.sort(key=lambda test: (not test.lines.get(one.module), not test.name.startswith(own), turns[test.name]))
    chosen, spent = [], 0.0
    for test in running:
        if spent + test.seconds <= budget:
            chosen.append(test.name)
            spent += test.seconds
    return chosen


class Slots:
    """Copies of the project; what runs in one is a fork of this process."""

    def __init__(self, count: int) -> None:
        files = subprocess.run(  # noqa: S603 - a constant command
            ["git", "ls-files", "-co", "--exclude-standard", "-z", PACKAGE, "tests", "pyproject.toml"],  # noqa: S607
            cwd=PROJECT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        self.files = [name for name in files if name and (PROJECT / name).is_file()]
        self._copies = [WORK / f"copy-{number}" for number in range(count)]
        for copy in self._copies:
            shutil.rmtree(copy, ignore_errors=True)
            for name in self.files:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(PROJECT / name, copy / name)

    def each(
        self, tasks: Sequence[tuple[Callable[[Path], int], float]], done: Callable[[int, int | None, Path], None]
    ) -> None:
        """Run every task in a fork; ``done`` gets its number, its exit status (``None``: too late) and its copy."""
        free, waiting = list(self._copies), list(enumerate(tasks))
        running: dict[int, tuple[int, Path, float]] = {}
        while waiting or running:
            while waiting and free:
                number, (task, seconds) = waiting.pop(0)
                copy = free.pop()
                running[_forked(task, copy)] = number, copy, time.monotonic() + seconds
            time.sleep(0.02)
            for process, (number, copy, deadline) in list(running.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                late = not ended and time.monotonic() > deadline
                if not ended and not late:
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
                if late:
                    os.waitpid(process, 0)
                del running[process]
                done(number, None if late else os.waitstatus_to_exitcode(status), copy)
                free.append(copy)


def _forked(task: Callable[[Path], int], copy: Path) -> int:
    process = os.fork()
    if process:
        return process
    try:
        os.setsid()
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        with (copy / "output").open("w") as output:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
        status = task(copy)
    except BaseException as error:
        print(repr(error))
        status = 70
    finally:
        sys.stdout.flush()
        os._exit(status)


def _pytest(copy: Path, arguments: Sequence[str], plugins: Sequence[object] = ()) -> int:
    given = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*given, f"--basetemp={copy / 'tmp'}", *arguments], plugins=list(plugins)))


class _Measuring:
    """Notes for each test how long it takes, whether it passes, and which lines it runs.

    Args:
        copy: the copy of the project.
        has_server: the tests share a server: what it takes to start counts for none of them.
    """

    def __init__(self, copy: Path, *, has_server: bool) -> None:
        self._has_server = has_server
        self._prefix = f"{copy / PACKAGE}/"
        self._coverage = coverage.Coverage(
            data_file=None, source=[str(copy / PACKAGE)], config_file=False, messages=False
        )
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "spark" not in getattr(item, "fixturenames", ())]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        counted = report.duration if report.when == "call" or not self._has_server else 0.0
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + counted
        if not report.passed:
            self._failed.add(report.nodeid)

    def run(self, copy: Path, arguments: Sequence[str]) -> list[Test]:
        self._coverage.start()
        _pytest(copy, arguments, [self])
        self._coverage.stop()
        lines: dict[str, dict[str, list[int]]] = {name: {} for name in self._seconds if name not in self._failed}
        data = self._coverage.get_data()
        for file in data.measured_files():
            for line, names in data.contexts_by_lineno(file).items():
                for name in names:
                    if name in lines:
                        lines[name].setdefault(file.removeprefix(self._prefix), []).append(line)
        return [Test(name, round(self._seconds[name], 3), at, self._has_server) for name, at in lines.items()]


def measured(slots: Slots, areas: Sequence[str], served: Sequence[tuple[str, ...]]) -> list[Test]:
    """What the tests run; what is known of a file is kept while nothing changes.

    Args:
        slots: where the tests run.
        areas: what the names of the files of fast tests begin with.
        served: how pytest is called for the tests with a server.
    """
    code = hashlib.sha256()
    for name in sorted(slots.files):
        if name.startswith(f"{PACKAGE}/") or "/test_" not in name:
            code.update(name.encode() + (PROJECT / name).read_bytes())
    kept: dict[tuple[str, ...], Path] = {}
    for arguments in [
        *served,
        *((name,) for name in slots.files if "/test_" in name and name.startswith(tuple(areas))),
    ]:
        files = [PROJECT / name for name in slots.files if "/test_" in name and name.startswith(arguments)]
        key = hashlib.sha256(code.digest() + repr(arguments).encode() + b"".join(file.read_bytes() for file in files))
        kept[arguments] = WORK / "measured" / f"{key.hexdigest()[:24]}.json"
    (WORK / "measured").mkdir(parents=True, exist_ok=True)
    missing = [arguments for arguments, file in kept.items() if not file.exists()]

    def measure(arguments: tuple[str, ...]) -> Callable[[Path], int]:
        def task(copy: Path) -> int:
            found = _Measuring(copy, has_server=arguments in served).run(copy, arguments)
            partial = kept[arguments].with_suffix(".part")
            partial.write_text(json.dumps([list(vars(test).values()) for test in found]), encoding="utf-8")
            partial.replace(kept[arguments])
            return 0

        return task

    def done(number: int, status: int | None, _: Path) -> None:
        print(f"measured {' '.join(missing[number])}{'' if status == 0 else ': failed'}", flush=True)

    slots.each([(measure(arguments), 1800.0) for arguments in missing], done)
    files = [file for file in kept.values() if file.exists()]
    return [Test(*each) for file in files for each in json.loads(file.read_text(encoding="utf-8"))]


def _tried(one: Mutant, tests: Sequence[str]) -> Callable[[Path], int]:
    def task(copy: Path) -> int:
        target = copy / PACKAGE / one.module
        real = target.stat().st_mtime_ns
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        target.write_text(one.code, encoding="utf-8")
        os.utime(target, ns=(real + 10**13,) * 2)  # no compiled file is of this time
        return _pytest(copy, ["-x", "-m", "", *tests])

    return task


def main() -> int:
    """Try the changes, and say which were not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", default="", help="a folder or module, such as checkpoint/taking or filesystem/posix.py"
    )
    parser.add_argument("--matching", default="", help="a regular expression that the changed line matches")
    parser.add_argument("--sample", type=int, default=0, help="how many places are tried, chosen at random; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of tests for one change")
    asked = parser.parse_args()

    folders = [asked.only] if asked.only else FOLDERS
    roots = [PROJECT / PACKAGE / folder for folder in folders]
    files = sorted(file for root in roots for file in (root.rglob("*.py") if root.is_dir() else [root]))
    sources = {str(file.relative_to(PROJECT / PACKAGE)): file.read_text(encoding="utf-8") for file in files}
    sources = {name: source for name, source in sources.items() if name not in LEFT_OUT}
    matching = re.compile(asked.matching)
    found = [
        (module, place)
        for module, source in sources.items()
        for lines in [source.split("\n")]
        for place in places(source)
        if matching.search(lines[place[0][2][0] - 1])
    ]
    chooser = random.Random(asked.seed)
    sample = chooser.sample(found, min(asked.sample or len(found), len(found)))
    mutants = [mutant(module, sources[module], *chooser.choice(place)) for module, place in sample]
    listed = set(EQUIVALENT.read_text(encoding="utf-8").splitlines()) if EQUIVALENT.exists() else set()
    equivalent = [one for one in mutants if one.is_among(listed)]
    tried = [one for one in mutants if one not in equivalent]
    print(f"{len(found)} places in {len(sources)} modules; {len(mutants)} tried, seed {asked.seed}.", flush=True)

    for name in IMPORTED_ONCE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    slots = Slots(asked.workers)
    tests = measured(
        slots,
        sorted(
            {
                name
                for folder, names in FOLDERS.items()
                if any(one.startswith(folder) for one in sources)
                for name in names
            }
        ),
        [arguments for begins, arguments in WITH_SERVER.items() if any(one.module.startswith(begins) for one in tried)],
    )
    chosen = [closest(one, tests, asked.budget) for one in tried]
    survived: list[Mutant] = []
    ended = 0

    def done(number: int, status: int | None, copy: Path) -> None:
        nonlocal ended
        one = tried[number]
        shutil.copy2(PROJECT / PACKAGE / one.module, copy / PACKAGE / one.module)
        ended += 1
        if status == 0:
            survived.append(one)
            print(
                f"{ended}/{len(tried)} not noticed by {len(chosen[number])} tests: {one} (line {one.line})", flush=True
            )

    runs = [(number, names) for number, names in enumerate(chosen) if names]
    untested = [one for one, names in zip(tried, chosen, strict=True) if not names]
    slots.each(
        [(_tried(tried[number], names), 120.0 + 10 * asked.budget) for number, names in runs],
        lambda place, status, copy: done(runs[place][0], status, copy),
    )
    for one in untested:
        print(f"no fast test runs the line: {one} (line {one.line})")
    missed = len(survived) + len(untested)
    score = 100.0 if not tried else math.floor(1000 * (len(tried) - missed) / len(tried)) / 10
    print(
        f"{len(tried) - missed} of {len(tried)} changes were noticed, {score} %; "
        f"{len(equivalent)} others are listed as equivalent in {EQUIVALENT.relative_to(PROJECT)}."
    )
    return 0 if not missed else 1


if __name__ == "__main__":
    sys.exit(main())
