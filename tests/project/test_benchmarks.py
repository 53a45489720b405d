"""Every script of ``benchmarks/`` at its smallest size: it runs to its end and reports the figures it is for."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from benchmarks.failures.case import STAGES, Case
from benchmarks.failures.page import write_page
from benchmarks.failures.results import Results
from tests.helpers.local_spark import delta_conf, iceberg_conf

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").is_file())
#: Seconds that a script may take on a busy machine; below the time that pytest gives the test.
_PATIENCE = 1140


def _age(report: Any) -> None:
    figures = {(record["what"], record["of"]): record for record in report}
    assert all(record["seconds"] > 0 for record in report)
    for shape in ("1 start", "100 starts", "100 starts with rollbacks"):
        assert {what for what, of in figures if of == f"30 retained, {shape}"} == {
            "list",
            "retention",
            "start",
            "subsume",
        }
    # The heartbeat of each, and the epochs where the look before is some seconds old.
    assert 3 <= figures["tick", "3 jobs that run, in a bucket"]["requests"] <= 6
    # A listing, and now and then the claim of each.
    assert 3 <= figures["tick", "3 jobs that are over, in a bucket"]["requests"] <= 6


def _first_checkpoint(report: Any) -> None:
    assert [step["lines"] for step in report["steps"]] == [1, 1, 1, 0, 0, 0, 0]
    assert [step["clicks"] for step in report["steps"]] == [0, 0, 0, 3, 1, 3, 5]
    assert report["seconds"] == pytest.approx(sum(step["seconds"] for step in report["steps"]))
    assert all(step["seconds"] > 0 for step in report["steps"])


def _growth(report: Any) -> None:
    small, large = report["sizes"]
    assert (small["keys"], large["keys"]) == (500, 1000)
    assert small["full"] < large["full"], "MB of a full copy"
    for size in (small, large):
        assert size["pin"] > 0
        assert size["new"] > 0
        assert size["restore"] > 0
        assert size["ratio"] > 0


def _full_instance(report: Any) -> None:
    figures = {record["what"]: record for record in report["records"]}
    assert {record["storage"] for record in report["records"]} == {"PostgreSQL"}
    assert {
        "report of 40, each",
        "report of one more, one less",
        "tick that launches the next run",
        "tick with nothing to do, 3 jobs",
        "dagster-ckpt status",
        "newest partition seen",
        "its way back seen",
    } <= set(figures)
    assert all(record["seconds"] > 0 for record in figures.values())


def _imports(report: Any) -> None:
    assert {"import dagster", "import dagster_ckpt", "import definitions", "dagster-ckpt list"} <= set(
        report["medians"]
    )
    assert all(seconds > 0 for seconds in report["medians"].values())


def _many_jobs(report: Any) -> None:
    figures = report["summary"]
    assert figures["jobs killed"] == len(report["resumed"]) == 4
    # A tick that is under way at a kill may find some of its jobs, and the next one finds the rest by their process: it
    # does not wait for the end of their lease.
    assert figures["ticks until a job's next run is launched, most"] <= 1 + figures["ticks that failed"]
    assert figures["seconds until it goes on, most"] >= figures["seconds until it is launched, median"] > 0
    assert figures["checkpoints completed"] > 0
    assert figures["requests of the sensor a minute"] > 0
    assert figures["requests of the drivers a minute"] > 0
    assert figures["ticks with launches"] > 0
    assert figures["seconds of a tick for each launch"] > 0
    assert report["usage"]["grown"]["event_logs"] > 0


def _object_store(report: Any) -> None:
    sizes = {"20 x 10 KiB": 20 * 10 * 1024, "1 x 20 MiB": 20 << 20}
    for name, size in sizes.items():
        uploads, restores = (
            {record["how"]: record for record in report if record["set"] == name and record["what"] == what}
            for what in ("upload", "restore")
        )
        assert set(uploads) >= {"ours", "put recursive", "put_file loop"}
        assert set(restores) >= {"ours", "ours, fetched ahead", "put recursive"}
        assert restores["ours, fetched ahead"]["requests"] < restores["ours"]["requests"]
        for restore in restores.values():
            assert restore["seconds"] > 0
            assert restore["requests"] > 0
        for upload in uploads.values():
            assert upload["seconds"] > 0
            assert upload["requests"] > 0
            assert upload["bytes"] >= size
    (newest,) = (record for record in report if record["set"] == "newest of 10")
    assert newest["seconds"] > 0
    assert newest["requests"] > 0


def _overhead(report: Any) -> None:
    figures = report["summary"]
    assert len(figures["ratios"]) == 2
    assert 0 <= figures["ratio_lower_95"] <= figures["ratio_geometric_mean"]
    assert figures["noise_between_equal_neighbours_median"] >= 0
    for kind in ("A", "B"):
        assert figures["rows_per_second_median"][kind] > 0
        assert figures["cpu_seconds_mean"][kind] > 0
    assert figures["checkpoints"] > 0
    assert figures["failed_checkpoints"] == 0
    for step in ("align_ms", "pin_ms", "write_ms"):
        assert 0 < figures[step]["p50"] <= figures[step]["max"]
    assert 0 < figures["new_bytes"]["mean"] < figures["full_copy_bytes_mean"]


def _postgres_sink(report: Any) -> None:
    figures = report["summary"]
    low, high = figures["ratio_95"]
    assert 0 < low <= figures["ratio_B_to_A"] <= high
    for kind in ("A", "B"):
        assert figures[f"rows_per_second_{kind}"] > 0
        assert figures[f"batch_ms_median_{kind}"] > 0


def _recovery(report: Any) -> None:
    assert report["failed"] == []
    (case,) = report["cases"]["in run"]
    _is_whole(case)
    assert report["summary"]["in run"]["total"]["median"] == case["total"]


def _is_whole(case: Any) -> None:
    assert case["restored"] >= 0
    assert case["stages"]["restore"] > 0
    assert case["stages"]["first_batch"] > 0
    assert sum(case["stages"].values()) == pytest.approx(case["total"], abs=0.01)


def _request_cost(report: Any) -> None:
    (case,) = report
    assert case["job"]["counted"]["insert heartbeat"] > 0
    assert case["job"]["reads"] > 0
    assert case["sensor"]["counted"]["read heartbeat"] > 0
    assert case["job"]["usd"] > case["sensor"]["usd"] > 0


def _restore(report: Any) -> None:
    assert all(figure >= 0 for figure in report["steps_ms"].values())
    assert report["steps_ms"]["read, verify and write every file"] > 0
    assert report["steps_ms"]["checkpoint_files"] > 0
    assert report["seconds_per_batch"]["replay"] > 0
    assert report["seconds_per_batch"]["anew"] > 0
    assert report["ratio"] > 0
    for (run,) in report["runs"].values():
        assert run["restore_s"] > 0
        assert run["batches"] == report["batches"] - 1
        assert run["rows"] > report["keys"]


def _scale(report: Any) -> None:
    constants, large = report["constants"], report["large_job"]
    assert all(figure > 0 for part in report.values() for figure in part.values())
    # As large as a manifest of that many lines is: the model multiplies what was measured.
    assert large["MiB of a manifest"] == pytest.approx(1000 * constants["line_bytes"] / (1 << 20))
    assert large["TB stored, without packs and manifests"] == pytest.approx(1000 * (1 + 10 * 0.01) * (1 << 26) / 1e12)
    assert report["many_jobs"]["requests of one look at all"] >= 100


def _stream_in_bucket(report: Any) -> None:
    (figures,) = report["summary"]
    low, high = figures["ratio_95"]
    assert len(figures["ratios"]) == 2
    assert 0 <= low <= figures["ratio_of_batch_ms_a_to_b"] <= high
    for kind in ("A", "B"):
        for figure in ("batch_ms_median", "requests_per_batch", "sent_bytes_per_batch", "cpu_seconds_per_batch"):
            assert figures[kind][figure] > 0
        assert figures[kind]["failed_checkpoints"] == 0
    assert figures["A"]["checkpoints"] == 0
    assert figures["B"]["checkpoints"] > 0
    assert figures["B"]["requests_per_checkpoint"] > 0


def _tables(report: Any) -> None:
    assert report["format"] == ("delta" if delta_conf() else "iceberg")
    assert [size["rows"] for size in report["sizes"]] == report["parameters"]["rows"] == [10, 20]
    for size in report["sizes"]:
        assert Counter(run["kind"] for run in size["runs"]) == dict.fromkeys("AFB", report["parameters"]["pairs"])
        for figure in ("batch_ms_median", "cpu_ms_a_batch"):
            for pair in ("B_to_A", "F_to_A", "B_to_F"):
                ratio, (low, high) = size[f"{figure}_{pair}"]
                assert 0 < low <= ratio <= high
            both = size[f"{figure}_B_to_F"][0] * size[f"{figure}_F_to_A"][0]
            assert size[f"{figure}_B_to_A"][0] == pytest.approx(both), "the same turns"


def _transactional_sink(report: Any) -> None:
    assert [case["files"] for case in report["commit_alone"]] == [1, 10, 100, 1000]
    assert all(case["moved_ms"] > 0 and case["renamed_ms"] > 0 for case in report["commit_alone"])
    assert report["restore"]["lists"] > 0
    assert report["restore"]["check_s"] > 0
    assert report["restore"]["rollback_s"] > 0
    figures = report["summary"]
    low, high = figures["ratio_95"]
    assert figures["rows_per_second_A"] > 0
    assert figures["rows_per_second_B"] > 0
    assert 0 < low <= figures["ratio_B_to_A"] <= high
    assert 0 < figures["commit_ms_median"] <= figures["commit_ms_max"]


#: For each script: the smallest size that goes through all its code, whether it takes ``--directory``, and what its
#: report must hold.
_TABLE: dict[str, tuple[str, bool, Callable[[Any], None]]] = {
    "age": ("--retained 30 --jobs 3 --latency 0.001 --rounds 3", False, _age),
    "first_checkpoint": ("", True, _first_checkpoint),
    "growth": ("--keys 500 1000 --pairs 2 --batches 12 --interval 0.1", True, _growth),
    "full_instance": (
        "--runs 40 --jobs 3 --checkpoints 40 --rounds 1 --storages PostgreSQL",
        True,
        _full_instance,
    ),
    "imports": ("--rounds 1", False, _imports),
    "many_jobs": (
        "--jobs 8 --per-driver 4 --minutes 0.5 --every 15 --interval 3 --beat 2 --latency 0.001",
        True,
        _many_jobs,
    ),
    "object_store": (
        "--sets '20 x 10 KiB' '1 x 20 MiB' --rounds 1 --latencies 0.001 --retained 10",
        False,
        _object_store,
    ),
    "overhead": (
        "--keys 1000 --batches 3 --pairs 2 --warm-up-blocks 0 --interval 0.1 --maintenance 0.1 --partitions 1",
        True,
        _overhead,
    ),
    "postgres_sink": ("--rows 10 --batches 2 --pairs 2", True, _postgres_sink),
    "recovery": (
        "--cases 0 --jvm 0 --elsewhere 0 --restarts 1 --every 6 --keys 1000 --no-archive",
        True,
        _recovery,
    ),
    "request_cost": (
        "--seconds 10 --settle 1 --tick 1 --storages gs --leases default --ways dagster",
        False,
        _request_cost,
    ),
    "restore": ("--keys 1000 --batches 3 --rounds 1", False, _restore),
    "scale": (
        f"--files 1000 --retained 30 --jobs 3 --latency 0.001 --many-jobs 100 --many-retained 10 --state {1000 << 26}",
        False,
        _scale,
    ),
    "stream_in_bucket": (
        "--keys 100 --rows 10 --fill 2 --warm-up 1 --batches 2 --rounds 2 --latencies 0 --partitions 1",
        True,
        _stream_in_bucket,
    ),
    "tables": ("--rows 10 20 --batches 2 --pairs 2", True, _tables),
    "transactional_sink": ("--rows 10 --batches 2 --pairs 2 --repeats 1 --commits 10", True, _transactional_sink),
}


_NAMES = sorted({script.stem for script in (_ROOT / "benchmarks").glob("*.py")} | set(_TABLE))
_MARKS: dict[str, tuple[pytest.MarkDecorator, ...]] = {
    # scale.py runs it, which the build has.
    "age": (pytest.mark.exhaustive,),
    # It installs everything anew.
    "first_checkpoint": (pytest.mark.exhaustive,),
    # It runs overhead.py, which the build has.
    "growth": (pytest.mark.exhaustive,),
    # With Delta a run takes more than twice as long.
    "tables": (
        pytest.mark.releases,
        *((pytest.mark.exhaustive,) if delta_conf() else ()),
        pytest.mark.skipif(not (delta_conf() or iceberg_conf()), reason="no format of tables is for this Spark"),
    ),
}


@pytest.mark.integration
@pytest.mark.timeout(_PATIENCE + 60)
@pytest.mark.parametrize("name", [pytest.param(name, marks=_MARKS.get(name, ())) for name in _NAMES])
def test_a_benchmark_reports_its_figures(name: str, tmp_path: Path) -> None:
    assert name in _TABLE, (
        f"Nothing here runs benchmarks/{name}.py: add its smallest size and a check of its report to _TABLE, "
        "and its command to the table of benchmarks/README.md"
    )
    arguments, takes_directory, check = _TABLE[name]
    readme = (_ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    call = f"{name}.py {arguments}".rstrip()
    assert f"`{call}`" in readme, f"benchmarks/README.md gives another smallest size of {name}.py"
    directory = ["--directory", str(tmp_path / "work")] if takes_directory else []
    check(_report(f"benchmarks/{name}.py", [*shlex.split(arguments), *directory], tmp_path))


@pytest.mark.exhaustive
@pytest.mark.timeout(_PATIENCE + 60)
def test_the_recovery_by_a_standby(tmp_path: Path) -> None:
    others = "--jvm 0 --elsewhere 1 --standby-elsewhere 1 --standby 1 --restarts 0 --no-archive"
    page = tmp_path / "reference" / "recovery.md"
    page.parent.mkdir()
    arguments = f"{others} --cases 2 --whole-standby 2 --checkpoints 1 --keys 1000 --page {page}"
    report = _recovery_report(arguments, tmp_path)
    (without, _), (case, again) = report["cases"]["new run"], report["cases"]["whole standby"]
    _is_whole(without)
    assert all(seconds > 0 for seconds in without["stages"].values())
    assert without["cpu"] > 0
    assert {"detected", "decided", "process", "imports", "session", "unpack", "first commit"} <= set(without["trace"])
    assert {"JVM", "standby"} & set(without["trace"]), "its own JVM, or that which was launched with the run"
    assert not {"process", "imports", "JVM"} & set(case["trace"])
    assert {"detected", "decided", "unpack", "first commit"} <= set(case["trace"])
    assert again["restored"] > case["restored"], "the run that took over was killed in its turn"
    for kind in ("elsewhere", "standby elsewhere"):
        (elsewhere,) = report["cases"][kind]
        assert elsewhere["total"] > report["parameters"]["lease"], "the other host took over while the run might live"
    (adopted,), (started,) = report["cases"]["standby"], report["cases"]["no standby"]
    assert "standby" in adopted["trace"]
    assert "JVM" in started["trace"]
    assert report["ratios"]["standby"]["total"] > 0
    _is_told(page, report, "new run", "whole standby", "standby elsewhere")


@pytest.mark.exhaustive
@pytest.mark.timeout(_PATIENCE + 60)
def test_the_recovery_of_flink(tmp_path: Path) -> None:
    page = tmp_path / "reference" / "recovery.md"
    page.parent.mkdir()
    arguments = f"--cases 0 --jvm 1 --elsewhere 0 --restarts 0 --flink 2 --keys 1000 --no-archive --page {page}"
    report = _recovery_report(arguments, tmp_path)
    for kind in ("everything", "TaskManager", "task"):
        first, second = report["cases"][f"Flink: {kind}"]
        assert 0 < first["restored"] < second["restored"]
        assert 0 < first["moments"]["running"] <= first["stages"]["first_record"]
        assert first["stages"]["checkpoint"] > 0
    _is_told(page, report, "jvm", "Flink: TaskManager")


def test_a_failure_that_could_not_be_measured_is_told_and_loses_no_other(tmp_path: Path) -> None:
    parameters = {"lease": 5.0} | dict.fromkeys(("keys", "cases", "whole_standby", "jvm", "restarts", "flink"), 3)
    output, page = tmp_path / "report.json", tmp_path / "reference" / "recovery.md"
    page.parent.mkdir()
    results = Results(output, {**parameters, "elsewhere": 3})
    asked = []

    def broken(tried: int, missing: int) -> None:
        asked.append((tried, missing))
        if tried < 2:
            results.add("elsewhere", _seconds(6.0 + 2 * tried))
            raise TimeoutError(f"Waited in vain, {missing} to go")

    results.take("elsewhere", "Another host", 3, broken)
    assert asked == [(0, 3), (1, 2), (2, 1)]
    kept = json.loads(output.read_text(encoding="utf-8"))
    assert kept["failed"] == ["elsewhere: Waited in vain, 3 to go", "elsewhere: Waited in vain, 2 to go"]
    gone_on = Results(output, kept["parameters"], kept)
    gone_on.take("elsewhere", "Another host", 3, lambda tried, missing: asked.append((tried, missing)))
    assert asked[3:] == [(0, 1), (1, 1), (2, 1)], "two of three are there"
    gone_on.add("Flink: task", Case(7, {"first_record": 1.0, "checkpoint": 2.0}, {}, 3.0))
    gone_on.add("in run", _seconds(1.5))
    write_page(page, gone_on.report(), None)
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert "7, 7.9 (2)" in text
    assert "the lease + 2.0 s (95th percentile: + 2.9 s)" in text
    assert "| 1.5, 1.5 (1) | 3, 3 (1) | 1, 1 (1) | 0.50 |" in text
    assert text.count("**A case failed**: elsewhere: Waited in vain") == 2


def _seconds(total: float) -> Case:
    return Case(7, dict.fromkeys(STAGES, 0.0) | {"first_batch": total}, {}, total)


def _recovery_report(arguments: str, directory: Path) -> Any:
    where = ["--directory", str(directory / "work")]
    report = _report("benchmarks/recovery.py", [*shlex.split(arguments), *where], directory)
    for case in (case for cases in report["cases"].values() for case in cases):
        assert sum(case["stages"].values()) == pytest.approx(case["total"], abs=0.01)
    return report


def _is_told(page: Path, report: Any, *kinds: str) -> None:
    """The page has the figures of the report, and the plot is beside it."""
    text = page.read_text(encoding="utf-8")
    for kind in kinds:
        figures = report["summary"][kind]["total"]
        assert f"{figures['median']:.3g}, {figures['p95']:.3g} ({len(report['cases'][kind])})" in text
    assert (page.parents[1] / "images" / "recovery.svg").read_text(encoding="utf-8").startswith("<?xml")


def _report(script: str, arguments: list[str], directory: Path) -> Any:
    """What a benchmark reports."""
    output, log = directory / "report.json", directory / "log"
    code = _run([script, *arguments, "--output", str(output)], log)
    assert code == 0, log.read_text(encoding="utf-8")[-5000:]
    return json.loads(output.read_text(encoding="utf-8"))


def _run(arguments: list[str], log: Path) -> int:
    """Run Python with these arguments; its exit code. No process is left, a stopped one neither."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with log.open("wb") as told:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=_ROOT, env=environment, stdout=told, stderr=subprocess.STDOUT
        )
        try:
            return process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"Not done after {_PATIENCE} s:\n{log.read_text(encoding='utf-8')[-5000:]}")
        finally:
            if process.poll() is None:
                main = psutil.Process(process.pid)
                for left in [*main.children(recursive=True), main]:
                    left.kill()
                process.wait()
