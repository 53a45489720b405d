"""The JVM of Hadoop's client: what is hidden from PySpark while the JVM is started, and how the JVM is ended."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest

from dagster_ckpt.filesystem.hdfs import hadoop_jvm


def test_the_jvm_above_this_process_is_hidden_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "s")
    before = dict(os.environ)
    with hadoop_jvm._without_gateway():
        assert before.items() - os.environ.items() == {("PYSPARK_GATEWAY_PORT", "1"), ("PYSPARK_GATEWAY_SECRET", "s")}
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("command", "status"),
    [(["cat"], 0), (["sleep", "20"], -9)],
    ids=["one that ends with its input", "one that does not"],
)
def test_its_process_is_ended_and_waited_for(monkeypatch: pytest.MonkeyPatch, command: list[str], status: int) -> None:
    if status:
        monkeypatch.setattr(hadoop_jvm, "_TEAR_DOWN", 0.01)
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    gateway = SimpleNamespace(proc=process, _gateway_client=SimpleNamespace(is_connected=True))
    monkeypatch.setattr(hadoop_jvm, "_launch", lambda: gateway)
    jvm = hadoop_jvm._Jvm()
    try:
        assert jvm.is_alive
        jvm.close()
        assert process.returncode == status
        assert not jvm.is_alive
    finally:
        process.kill()
        process.wait()
