"""A job's metrics, pushed to a receiver that speaks OTLP and scraped from the endpoint for Prometheus."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.spark.metrics import _COUNTERS, _GAUGES
from tests.jobs.harness import Bench, eventually
from tests.jobs.standalone.test_drivers import Command, driver_of, until_read
from tests.servers.ports import free_port
from tests.servers.prometheus import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
_BOARD = _HOW_TO / "grafana-board.json"


class Receiver(ThreadingHTTPServer):
    """Takes OTLP over HTTP, and keeps the last value of each metric."""

    daemon_threads = True

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.jobs: set[str] = set()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take(self, request: ExportMetricsServiceRequest) -> None:
        for metric in (m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics):
            for point in (*metric.gauge.data_points, *metric.sum.data_points):
                self.values[metric.name] = point.as_double if point.HasField("as_double") else float(point.as_int)
                self.jobs |= {item.value.string_value for item in point.attributes if item.key == "job_name"}


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.take(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver
        receiver.shutdown()


@pytest.mark.exhaustive
def test_a_job_pushes_its_metrics_and_can_be_scraped(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp,prometheus")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"http://127.0.0.1:{receiver.server_port}/v1/metrics")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(port))
    bench = Bench(cast("SparkSession", None), tmp_path)
    bench.land(2)
    command = Command(tmp_path)
    until_read(bench, command)

    def is_told() -> bool:
        """A push may come between two numbers, and before the older checkpoint is deleted."""
        newest = find_newest(bench.catalog).metadata
        if newest is None:
            return False
        numbers = {
            "last_completed_checkpoint_id": newest.checkpoint_id,
            "last_checkpoint_full_size": newest.size,
            "last_checkpoint_size": newest.new_bytes,
            "last_checkpoint_duration": newest.duration_ms,
            # A deletion that failed is tried again with the next checkpoint only.
            "number_of_retained_checkpoints": len(bench.catalog.completed(newest.job_id)[0]),
        }
        return {name: values.get(name) for name in numbers} == numbers

    values = _Named(receiver.values)
    eventually("the newest checkpoint is told", is_told, unless=command.check)
    newest = find_newest(bench.catalog).metadata
    assert newest is not None
    assert receiver.jobs == {"tiny"}
    assert (values.get("number_of_failed_checkpoints"), values.get("num_restarts")) == (0, 0)
    assert (values.get("number_of_completed_checkpoints") or 0) >= 1

    scraped = _scrape(port)
    assert re.search(
        rf'^dagster_ckpt_last_completed_checkpoint_id{{.*job_name="tiny".*}} {newest.checkpoint_id}\.0$',
        scraped,
        re.MULTILINE,
    )
    known = set(re.findall(r"^(dagster_ckpt_\w+)\{", scraped, re.MULTILINE))
    asked = set(re.findall(r"dagster_ckpt_\w+", json.dumps(json.loads(_BOARD.read_text())["panels"])))
    # The job restored nothing, and its source tells no records that are left.
    assert asked - known == {
        "dagster_ckpt_last_checkpoint_restore_timestamp_milliseconds",
        "dagster_ckpt_pending_records",
    }
    assert known <= asked, "the board has a panel for each metric"
    assert len(known) == len(_GAUGES) + len(_COUNTERS) - 2

    os.kill(driver_of(bench)[0], 9)
    bench.land(1)
    until_read(bench, command)
    eventually(
        "the restored job tells its metrics",
        lambda: values.get("last_checkpoint_restore_timestamp") is not None,
        unless=command.check,
    )
    command.process.terminate()
    assert command.status() == 143


@pytest.mark.exhaustive
def test_the_alerts_of_the_docs_and_the_queries_of_the_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is well alerts nobody, and a job that has ended is still missed, when nothing tells metrics."""
    port = free_port()
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(port))
    bench = Bench(cast("SparkSession", None), tmp_path)
    bench.land(2)
    command = Command(tmp_path)
    until_read(bench, command)
    os.kill(driver_of(bench)[0], 9)
    bench.land(1)
    until_read(bench, command)
    late, failed = _alerts()
    with running(tmp_path / "prometheus", port) as prometheus:

        def tells(expression: str, *, of_job: bool = True) -> None:
            told = {"tiny"} if of_job else set()
            eventually(expression, lambda: set(prometheus.ask(expression)) == told, unless=command.check)

        tells(_with_threshold(late, "> -1"))
        tells(_with_threshold(failed, ">= 0"))
        assert prometheus.ask(late) == prometheus.ask(failed) == {}
        for panel in json.loads(_BOARD.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$job_name", "tiny|other")
                tells(query, of_job="pending_records" not in query)  # the source tells none that are left

        command.process.terminate()
        assert command.status() == 143
        last = "dagster_ckpt_last_checkpoint_completed_timestamp_milliseconds"
        eventually("nothing tells metrics any more", lambda: prometheus.ask(last) == {})
        assert prometheus.ask(_with_threshold(late, "> 0"))["tiny"] < 600


def _alerts() -> list[str]:
    """The expressions of the page's section on alerts."""
    text = (_HOW_TO / "metrics.md").read_text(encoding="utf-8")
    block = re.search(r"## Alerts.*?```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return block[1].strip().split("\n\n")


def _with_threshold(alert: str, threshold: str) -> str:
    changed, times = re.subn(r">=? \d+\Z", threshold, alert)
    assert times == 1, alert
    return changed


def test_a_receiver_that_hangs_holds_up_nobody() -> None:
    """The process ends, although its last export gets no answer."""
    code = """
from dagster_ckpt.spark.events import CheckpointFailed
from dagster_ckpt.spark.metrics import measured
told = []
emit = measured("job", told.append)
emit(CheckpointFailed(1, "full", 1))
assert emit != told.append
print(len(told))
"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "OTEL_METRICS_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "3600",
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    assert done.stdout == "1\n"


class _Named:
    def __init__(self, values: dict[str, float]) -> None:
        self._values = values

    def get(self, name: str) -> float | None:
        return self._values.get(f"dagster_ckpt.{name}")


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())
