"""What makes a start from nothing shorter, with real JVMs: order and classes are looked at, never seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.spark.jvm import class_archive
from dagster_ckpt.spark.jvm.class_archive import CACHE_VARIABLE, archive_for
from dagster_ckpt.spark.jvm.launching import OPTIONS_VARIABLE, compiler_option
from tests.helpers.local_spark import JVM_OPTIONS
from tests.helpers.processes import lives
from tests.jobs.harness import eventually

ROOT = Path(__file__).resolve().parents[3]
#: How a JVM tells that a class came from the archive of this library.
_FROM_ARCHIVE = "source: shared objects file (top)"
#: A tick of a job whose storage answers only once the JVM is there.
_JOB = """
import json, sys
from collections.abc import Iterator
from pathlib import Path
from pyspark import SparkContext
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dataclasses import replace
from tests.jobs.harness import Bench, eventually

class WaitsForTheJvm(PosixFileSystem):
    def probe(self):
        eventually("the JVM starts beside the claim", lambda: SparkContext._gateway is not None)
        super().probe()

root = Path(sys.argv[1])
bench = Bench(None, root)
conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSessionResource(master="local[1]", conf=conf)
job = replace(bench.job(filesystem=WaitsForTheJvm(bench.storage)), session=lambda: spark.session("tiny"),
              start_jvm=lambda: spark.start_jvm("tiny"))
bench.tick(1, job)
(trace,) = bench.catalog.records.starts.newest(5)
print("told", json.dumps({step.name: [step.began, step.began + step.seconds] for step in trace.steps}))
"""


@pytest.fixture(scope="module", autouse=True)
def _no_archive_of_the_tests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OPTIONS_VARIABLE, JVM_OPTIONS)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of archives, with one that was made as a page says."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(cache))
        patch.setattr(class_archive, "_attempts", [])
        SparkSessionResource().make_class_archive(wait=True)
        archive = archive_for({})
        assert archive is not None
        assert archive.is_whole()
        assert class_archive._begin({}) is None, "it is there"
        assert "Traceback" not in archive.path.with_suffix(".log").read_text(encoding="utf-8")
    return cache


def _version(log: Path, options: str, class_path: str = "") -> int:
    """Have a JVM of Spark's tell its version under these options; how many classes came from the archive."""
    environment = {**os.environ, OPTIONS_VARIABLE: f"{options} -Xlog:class+load:file={log}"}
    extra = ["--driver-class-path", class_path] if class_path else []
    command = [str(Path(pyspark.__file__ or "").parent / "bin" / "spark-submit"), *extra, "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "version" in done.stderr
    return log.read_text().count(_FROM_ARCHIVE)


def _run_with(cache: Path, program: str, root: Path) -> tuple[str, list[str]]:
    """Run a program that starts a JVM; what it said, and one line for each class that the JVM has loaded."""
    log = root / "classes.log"
    options = f"{os.environ[OPTIONS_VARIABLE]} -Xlog:class+load:file={log}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(root / "data")],
        cwd=ROOT,
        env={**os.environ, CACHE_VARIABLE: str(cache), OPTIONS_VARIABLE: options},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, log.read_text().splitlines()


@pytest.mark.exhaustive
def test_the_jvm_starts_beside_the_claim_and_from_the_archive(made: Path, tmp_path: Path) -> None:
    said, loaded = _run_with(made, _JOB, tmp_path)
    steps = json.loads(next(line for line in said.splitlines() if line.startswith("told"))[4:])
    assert steps["JVM"][0] < steps["claim"][1], "the JVM began to start before the claim ended"
    of_spark = [line for line in loaded if " org.apache.spark." in line and "Lambda" not in line and "$$" not in line]
    from_archive = [line for line in of_spark if _FROM_ARCHIVE in line]
    assert len(from_archive) > 0.8 * len(of_spark) > 1000


_READS_LINES = """
import sys
from pathlib import Path
from dagster_ckpt.spark.query.session import start_session
conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
session = start_session("lines", "local[1]", conf, class_archive=True)
root = Path(sys.argv[1])
root.mkdir()
(root / "1.csv").write_text("1\\n1\\n")
stream = session.readStream.schema("id LONG").csv(str(root)).dropDuplicates(["id"]).writeStream.format("csv")
stream = stream.option("path", str(root / "out")).option("checkpointLocation", str(root / "live"))
stream.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.exhaustive
def test_the_archive_knows_streams_of_several_formats_and_operators(made: Path, tmp_path: Path) -> None:
    _, loaded = _run_with(made, _READS_LINES, tmp_path)
    for name in ("UnivocityParser", "CsvOutputWriter", "StreamingDeduplicateExec", "janino.SimpleCompiler"):
        (line,) = (line for line in loaded if f".{name} source: " in line)
        assert _FROM_ARCHIVE in line


@pytest.mark.exhaustive
def test_no_archive_stops_a_jvm(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM itself refuses an archive of another class path or another Java, and goes on."""
    monkeypatch.setenv(CACHE_VARIABLE, str(made))
    archive = archive_for({})
    assert archive is not None
    log = tmp_path / "classes.log"
    compiler = compiler_option({})
    assert _version(log, f"{archive.options} {compiler}") > 1000
    assert _version(log, f"{archive.options} {compiler}", class_path=str(tmp_path)) == 0
    of_another_java = tmp_path / "other.jsa"
    data = bytearray(archive.path.read_bytes())
    own = data.find(b"OpenJDK 64-Bit Server VM")
    assert own > 0, "the header names the Java"
    data[own : own + 7] = b"ClosedJ"
    of_another_java.write_bytes(data)
    assert _version(log, f"-XX:SharedArchiveFile={of_another_java} {compiler}") == 0


_REFUSED = """
from dagster_ckpt.spark.jvm.class_archive import ClassArchive
from dagster_ckpt.spark.query.session import start_session
ClassArchive.options = "-agentpath:/no/such/agent"
conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
session = start_session("refused", "local[1]", conf, class_archive=True)
print("started", session.range(3).count(), session.conf.get("spark.ui.showConsoleProgress"))
"""


@pytest.mark.exhaustive
def test_a_jvm_that_dies_of_the_archives_options_is_started_without(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(made))
    done = subprocess.run([sys.executable, "-c", _REFUSED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "started 3 false" in done.stdout, f"or the bars of a stream fill the terminal: {done.stderr}"
    assert "/no/such/agent" in done.stdout + done.stderr, "the first JVM had the options"


def test_who_starts_the_making_takes_it_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(class_archive, "_attempts", [])
    process = class_archive._begin({})
    archive = archive_for({})
    assert process is not None
    assert process.stdin is not None
    assert archive is not None
    below = psutil.Process(process.pid)
    assert process.poll() is None
    eventually("its JVM starts", lambda: any("java" in child.name() for child in below.children(recursive=True)))
    (jvm,) = (child for child in below.children(recursive=True) if "java" in child.name())
    assert below.nice() == jvm.nice() == 19
    process.stdin.close()  # as at the end of this process
    assert process.wait(60) != 0
    eventually("its JVM ends", lambda: not lives(jvm))
    assert not archive.is_whole()
    assert not archive.may_be_made(), "not in the next run, which may be as short"
