"""Local files that Spark writes without the processes of Hadoop: the same files, in JVMs that start as a user's do."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import launch_gateway

from dagster_ckpt.spark.jvm import load_local_files, local_files, local_files_conf
from tests.helpers.local_spark import JVM_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]
_OWN, _HADOOPS = "org.apache.hadoop.fs.DagsterCkptLocalFiles", "org.apache.hadoop.fs.LocalFileSystem"
#: Two runs of a query with state, in a session that a resource or the command line would start.
_JOB = """
import json, sys, tempfile
from pathlib import Path
from dagster_ckpt.spark import start_session
from dagster_ckpt.spark.jvm import run_small_query
from tests.helpers.local_spark import SMALL_DRIVER

master, conf = json.loads(sys.argv[1])
spark = start_session("tiny", master, {**SMALL_DRIVER, "spark.sql.shuffle.partitions": "2", **conf})

scratch = Path(sys.argv[2])
scratch.mkdir()
record = spark._jvm.jdk.jfr.Recording()
record.enable("jdk.ProcessStart")
record.start()
run_small_query(spark, scratch)
record.stop()
recorded = spark._jvm.java.io.File(str(scratch / "processes.jfr")).toPath()
record.dump(recorded)
events = spark._jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(recorded)
commands = [str(event.getString("command")) for event in events]
# Spark's metrics of executors ask for the size of a page at the first of their heartbeats, one every 10 s.
started = [command for command in commands if command != "getconf PAGESIZE"]
used = spark._jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
rows = spark.read.parquet(str(scratch / "out")).count()
print("told", json.dumps([used.getClass().getName(), started, rows, spark._jvm.System.getProperty("java.class.path")]))
"""


def _told(directory: Path, master: str, conf: dict[str, str], **environment: str) -> tuple[str, list[str]]:
    """The file system of a query's files, and the commands of the processes that the JVM has started for them."""
    made = directory / "tmp"
    made.mkdir()
    inherited = {key: value for key, value in os.environ.items() if key != "SPARK_DIST_CLASSPATH"}
    done = subprocess.run(
        [sys.executable, "-c", _JOB, json.dumps([master, conf]), str(directory / "query")],
        cwd=ROOT,
        env={**inherited, "SPARK_SUBMIT_OPTS": JVM_OPTIONS, "TMPDIR": str(made), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, started, rows, class_path = json.loads(done.stdout.partition("told ")[2])
    assert str(made) not in class_path, "what another user puts there would run in this JVM"
    assert rows == 1, "the second run closes a window of the first"
    return name, started


@pytest.mark.exhaustive
def test_a_query_writes_its_files_without_a_process(tmp_path: Path) -> None:
    assert _told(tmp_path, "local[2]", {}) == (_OWN, [])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("master", "conf"),
    [
        ("local[2]", {"spark.hadoop.fs.file.impl": _HADOOPS}),
        # Its executors are processes of their own.
        ("local-cluster[1,1,512]", {"spark.executor.memory": "512m"}),
    ],
    ids=["the user decides", "executors elsewhere"],
)
def test_hadoops_own_are_used(tmp_path: Path, master: str, conf: dict[str, str]) -> None:
    name, started = _told(tmp_path, master, conf)
    assert name != _OWN
    assert started, "the test of the others can fail"


@pytest.mark.exhaustive
def test_hadoops_own_are_used_where_hadoops_files_name_another(tmp_path: Path) -> None:
    setting = f"<property><name>fs.file.impl</name><value>{_HADOOPS}</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{setting}</configuration>", encoding="utf-8")
    name, started = _told(tmp_path, "local[2]", {}, HADOOP_CONF_DIR=str(tmp_path))
    assert name == _HADOOPS
    assert started


@pytest.mark.exhaustive
def test_a_jvm_that_cannot_compile_them_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a Hadoop whose local file system is another."""
    monkeypatch.delenv("SPARK_DIST_CLASSPATH", raising=False)
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    conf = {"spark.master": "local[2]"}
    try:
        with monkeypatch.context() as patched:
            other = tmp_path / "Other.java"
            other.write_text(local_files.SOURCE.read_text(encoding="utf-8").replace("fs = ", "no_such = "))
            patched.setattr(local_files, "SOURCE", other)
            load_local_files(gateway.jvm, conf)
            assert "Spark writes local files by processes of Hadoop: " in caplog.text
            assert local_files_conf(gateway.jvm, conf) == {}
        load_local_files(gateway.jvm, conf)
        assert local_files_conf(gateway.jvm, conf)["spark.hadoop.fs.file.impl"] == _OWN
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def test_a_process_that_replaces_its_jvm_does_not_compile_them_again(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    first = local_files.compiled(jvm)
    without_compiler = SimpleNamespace(org=SimpleNamespace(apache=jvm.org.apache))
    assert local_files.compiled(without_compiler) == first


def test_they_do_what_hadoops_own_do(spark: SparkSession, tmp_path: Path) -> None:
    """Modes under a mask, the group of a directory, links, replacing and listing, by both of Hadoop's interfaces."""
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop
    used = str(hadoop.fs.FileSystem.getFileSystemClass("file", hadoop.conf.Configuration()).getName())
    assert used != _OWN
    told: list[list[Any]] = []
    for older, newer in ((_OWN, f"{_OWN}$Context"), (used, "org.apache.hadoop.fs.local.LocalFs")):
        root = tmp_path / older.rpartition(".")[2]
        root.mkdir()
        conf = hadoop.conf.Configuration()
        conf.set("fs.file.impl", older)
        conf.set("fs.AbstractFileSystem.file.impl", newer)
        conf.set("fs.permissions.umask-mode", "027")
        uri = jvm.java.net.URI("file:///")
        files = hadoop.fs.FileSystem.newInstance(uri, conf)
        context = hadoop.fs.FileContext.getFileContext(uri, conf)
        assert files.getClass().getName() == older
        assert context.getDefaultFileSystem().getClass().getName() == newer
        seen: list[Any] = []

        def path(name: str, root: Path = root) -> Any:
            return hadoop.fs.Path(str(root / name))

        (root / "of_a_group").mkdir()
        (root / "of_a_group").chmod(0o2770)
        files.mkdirs(path("of_a_group/below/that"))
        files.mkdirs(path("directory/below"))
        for name in ("a", "b", "directory/c", "e", "of_a_group/f"):
            out = files.create(path(name))
            out.write(7)
            out.close()
        (root / "link").symlink_to(root / "a")
        (root / "broken").symlink_to(root / "nothing")
        (root / "linked").symlink_to(root / "directory")
        for mode in (0o600, 0o777, 0o444):
            files.setPermission(path("a"), hadoop.fs.permission.FsPermission(mode))
            seen.append(_modes(root))
        files.setPermission(path("link"), hadoop.fs.permission.FsPermission(0o640))
        files.setPermission(path("directory"), hadoop.fs.permission.FsPermission(0o1770))
        files.setPermission(path("of_a_group"), hadoop.fs.permission.FsPermission(0o1750))
        seen.append(_modes(root))
        files.setPermission(path("of_a_group"), hadoop.fs.permission.FsPermission(0o755))
        (root / "e").chmod(0o6755)
        files.setPermission(path("e"), hadoop.fs.permission.FsPermission(0o751))
        for name in ("a", "link", "linked", "linked/c", "directory"):
            found = files.getFileLinkStatus(path(name))
            relative = found.getPath().toUri().getPath().removeprefix(str(root))
            seen.append((relative, found.isSymlink(), found.isDirectory(), found.getLen()))
        for name in ("broken", "nothing"):
            try:
                seen.append((name, files.getFileLinkStatus(path(name)).isSymlink()))
            except Py4JJavaError as error:  # both must raise the same
                seen.append((name, str(error.java_exception.getClass().getName())))
        overwrite = hadoop.fs.Options.Rename.OVERWRITE
        options = spark.sparkContext._gateway.new_array(hadoop.fs.Options.Rename, 1)  # type: ignore[union-attr]
        options[0] = overwrite
        context.rename(path("b"), path("a"), options)
        context.rename(path("linked/c"), path("directory/below/d"), options)
        renamed = (("a", "e"), ("e", "g"), ("g", "directory"), ("directory", "of_a_group"))
        seen.extend((names, files.rename(*map(path, names))) for names in renamed)
        seen.append(sorted(str(each.getPath().getName()) for each in files.listStatus(path("."))))
        seen.append(_modes(root))
        told.append(seen)
    assert told[0] == told[1]


def _modes(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): stat.filemode(path.lstat().st_mode) for path in sorted(root.rglob("*"))}
