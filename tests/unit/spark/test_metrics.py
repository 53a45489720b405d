"""Nobody pays for metrics that nobody asks for, and a job survives an exporter that cannot be started."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from dagster_ckpt.spark.events import Event
from dagster_ckpt.spark.metrics import measured


@pytest.mark.parametrize("settings", [{}, {"OTEL_METRICS_EXPORTER": "none"}, {"OTEL_METRICS_EXPORTER": ""}])
def test_without_a_wish_nothing_is_imported(settings: dict[str, str]) -> None:
    code = (
        "import sys\nfrom dagster_ckpt.spark.metrics import measured\n"
        "assert measured('job', print) is print\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **settings}, check=True)


def test_an_exporter_that_is_not_there_is_named_and_the_job_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "graphite")
    told: list[Event] = []
    with caplog.at_level(logging.WARNING):
        assert measured("job", told.append) == told.append
    (said,) = caplog.messages
    assert "the exporter graphite is not installed" in said
    assert 'pip install "dagster-ckpt[metrics]"' in said
