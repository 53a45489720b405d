"""Starting Spark: what its JVM is told, without a JVM."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.checkpoint.processes import DRIVER_VARIABLE
from dagster_ckpt.errors import JavaNotFound, StorageUnusable
from dagster_ckpt.filesystem.hdfs import hadoop_jvm
from dagster_ckpt.spark.jvm import local_files_conf
from dagster_ckpt.spark.jvm.early_jvm import start_beside
from dagster_ckpt.spark.jvm.launching import OPTIONS_VARIABLE, compiler_option, launched_with_compiler
from dagster_ckpt.spark.query.session import find_java
from tests.helpers.threads import no_more_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[4]


def _in_a_process(script: str, **environment: str) -> str:
    """What a script says in a process of its own: PySpark keeps the JVM of a process, and a pipe to one that died."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_EARLY = """
import contextlib
from dagster_ckpt.spark.query.session import start_jvm
with contextlib.suppress(Exception):
    start_jvm("job", "local[*]", {"spark.master": "yarn", "spark.app.name": "mine", "spark.driver.memory": "2g"})
"""


def test_the_users_conf_wins_in_the_early_jvm_as_in_the_session(tmp_path: Path) -> None:
    submit, told = tmp_path / "bin" / "spark-submit", tmp_path / "told"
    submit.parent.mkdir()
    submit.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{told}"\nexit 1\n', encoding="utf-8")
    submit.chmod(0o755)
    _in_a_process(_EARLY, SPARK_HOME=str(tmp_path))
    lines = told.read_text(encoding="utf-8").splitlines()
    assert sorted(line for line in lines if line.startswith("spark.")) == [
        "spark.app.name=mine",
        "spark.driver.memory=2g",
        "spark.master=yarn",
        "spark.ui.showConsoleProgress=false",
    ]


def test_a_jvm_optimizes_its_code_later_unless_the_user_decides(tmp_path: Path) -> None:
    submit, told = tmp_path / "bin" / "spark-submit", tmp_path / "told"
    submit.parent.mkdir()
    submit.write_text(f'#!/bin/sh\nprintf "%s" "$SPARK_SUBMIT_OPTS" > "{told}"\nexit 1\n', encoding="utf-8")
    submit.chmod(0o755)
    users = "-XX:Tier4CompileThreshold=15001"
    _in_a_process(_EARLY, SPARK_HOME=str(tmp_path), SPARK_SUBMIT_OPTS=users)
    options = told.read_text(encoding="utf-8").split()
    assert options[-1] == users
    said = subprocess.run(
        [str(find_java()), *options, "-XX:+PrintFlagsFinal", "-version"], capture_output=True, text=True, check=True
    )
    flags = dict(re.findall(r"(Tier4\w+Threshold)\s*=\s*(\d+)", said.stdout))
    assert flags == {
        "Tier4BackEdgeThreshold": "400000",
        "Tier4CompileThreshold": "15001",
        "Tier4InvocationThreshold": "50000",
        "Tier4MinInvocationThreshold": "6000",
    }


def test_sparks_compiler_is_loaded_with_javas_own_classes_unless_another_may_stand_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (OPTIONS_VARIABLE, "SPARK_CLASSPATH", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    option = compiler_option({"spark.driver.extraJavaOptions": "-Xss4m"})
    jars = [Path(jar) for jar in option.strip('"').removeprefix("-Xbootclasspath/a:").split(":")]
    assert [jar.name.rpartition("-")[0] for jar in jars] == ["janino", "commons-compiler"]
    assert all(jar.exists() for jar in jars)
    with launched_with_compiler({}):
        assert os.environ[OPTIONS_VARIABLE] == option
    assert OPTIONS_VARIABLE not in os.environ
    assert compiler_option({"spark.driver.extraClassPath": "/mine/*"}) == ""
    assert compiler_option({"spark.driver.extraJavaOptions": "-Xbootclasspath/a:/mine.jar"}) == ""
    assert compiler_option({"spark.driver.userClassPathFirst": "True"}) == ""
    assert compiler_option({"spark.sql.hive.metastore.jars": "maven"}) == ""
    with monkeypatch.context() as submitted:
        submitted.setenv("PYSPARK_SUBMIT_ARGS", "--driver-class-path /mine.jar pyspark-shell")
        assert compiler_option({}) == ""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert compiler_option({}) == "", "no such jars"


def test_a_query_is_compiled_by_classes_that_no_signature_is_checked_for(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    loaded = jvm.java.lang.Class.forName("org.codehaus.janino.SimpleCompiler")
    assert loaded.getClassLoader() is None
    assert spark.range(3).selectExpr("id * 2 AS twice").filter("twice > 2").count() == 1


_BESIDE = """
import contextlib, sys, time
from dagster_ckpt.spark.jvm.early_jvm import start_beside
def start():
    for _ in range(6000):
        if "pyspark.testing.utils" in sys.modules and "pandas" in sys.modules:
            print("imported while the JVM starts")
            return
        time.sleep(0.01)
assert "pandas" not in sys.modules
start_beside(start, contextlib.nullcontext([].append))()
"""


def test_what_pyspark_imports_at_its_first_call_is_imported_while_the_jvm_starts() -> None:
    assert "imported while the JVM starts" in _in_a_process(_BESIDE)


def test_a_jvm_that_spark_submit_has_launched_uses_hadoops_own(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = {"spark.master": "local[2]"}
    assert local_files_conf(spark._jvm, conf), "a JVM that is launched here has ours"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert local_files_conf(spark._jvm, conf) == {}


_RELEASE = 'JAVA_VERSION="21.0.2"\nMODULES="java.base jdk.incubator.vector"\n'
_START = """
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.query.session import start_session
try:
    start_session("job", "local[1]", {}, class_archive=True)
except CheckpointError as error:
    print(type(error).__name__, error)
"""


def test_a_java_that_only_its_release_file_calls_good_is_no_java(tmp_path: Path) -> None:
    """As is a Java for another processor: no restart helps, so none is tried."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_bytes(b"\x7fELF" + bytes(60))
    java.chmod(0o755)
    (tmp_path / "release").write_text(_RELEASE, encoding="utf-8")
    said = _in_a_process(_START, JAVA_HOME=str(tmp_path), DAGSTER_CKPT_CACHE=str(tmp_path / "cache"))
    assert said.startswith("JavaNotFound"), said
    assert str(java) in said


def test_a_java_home_that_is_away_is_a_start_that_may_succeed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on a mount; a PATH without Java is no start at all."""
    home = tmp_path / "mount" / "jdk"
    said = _in_a_process(_START, JAVA_HOME=str(home), DAGSTER_CKPT_CACHE=str(tmp_path / "cache"))
    assert said.startswith("SparkNotStarted"), said
    assert f"JAVA_HOME is {home}" in said
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(StorageUnusable, match="none in JAVA_HOME") as of_hdfs:
        hadoop_jvm._launch()
    assert of_hdfs.value.recoverable
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    for start in (find_java, hadoop_jvm._launch):
        with pytest.raises(JavaNotFound, match="on the PATH"):
            start()


def test_a_process_without_more_threads_leaves_the_jvm_to_the_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(DRIVER_VARIABLE, "")
    started: list[str] = []
    with no_more_threads():
        start_beside(lambda: started.append("JVM"), contextlib.nullcontext(started.append))()
    assert not started
    assert "can't start new thread" in caplog.text
