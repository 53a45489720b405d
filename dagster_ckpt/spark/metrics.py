"""Metrics of a run, by OpenTelemetry and under Flink's names.

OpenTelemetry's own environment variables say where the metrics go: without ``OTEL_METRICS_EXPORTER``, and without a
meter provider that the process has set up itself, nothing is measured and nothing is imported. Exporters work on their
own threads, so a run never waits for one.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.clock import seconds_of
from dagster_ckpt.shown_text import in_one_line, redacted
from dagster_ckpt.spark.events import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointQuarantined,
    CheckpointsDiscarded,
    CheckpointsSubsumed,
    Event,
    Restarting,
    SavepointCompleted,
    Started,
    StartTraced,
)
from dagster_ckpt.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics.export import MetricReader

__all__ = ["JobMetrics", "measured"]

_log = logging.getLogger(__name__)

#: The name of the meter, which each metric begins with.
METER = "dagster_ckpt"
_EXPORTERS = "OTEL_METRICS_EXPORTER"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
#: Seconds that the end of a process waits for the last export.
_LAST_EXPORT = 5.0
#: What each metric is called in Flink (there in camel case, which OpenTelemetry does not keep), its unit, and what it
#: tells.
_GAUGES = {
    "last_checkpoint_duration": ("ms", "Time of the last checkpoint from its cut to its last durable file"),
    "last_checkpoint_size": ("By", "Bytes that the last checkpoint had to write"),
    "last_checkpoint_full_size": ("By", "Bytes of all files of the last checkpoint"),
    "last_completed_checkpoint_id": ("", "N of the last chk-N"),
    "last_checkpoint_completed_timestamp": ("ms", "When the last checkpoint completed, since 1970"),
    "last_checkpoint_restore_timestamp": ("ms", "When a checkpoint was last restored, since 1970"),
    "number_of_retained_checkpoints": ("{checkpoint}", "Checkpoints that exist"),
    "pending_records": ("{record}", "Records that a source had left at the last checkpoint"),
    "restarting_time": ("ms", "Time of the last start, until its first batch was committed"),
}
_COUNTERS = {
    "number_of_completed_checkpoints": "Checkpoints and savepoints that completed",
    "number_of_failed_checkpoints": "Checkpoints that failed",
    "number_of_quarantined_checkpoints": "Checkpoints that were found broken and put into quarantine",
    "num_restarts": "Restarts of the query within the run",
}
_setting_up = threading.Lock()


def measured(job_name: str, emit: Callable[[Event], None]) -> Callable[[Event], None]:
    """Measure each event on its way; gives ``emit`` itself where nobody asks for metrics.

    Args:
        job_name: the attribute ``job_name`` of each metric.
        emit: takes the events of a run.
    """
    try:
        meter = _meter()
    except Exception as error:  # whatever an exporter raises: the run matters more
        _log.warning(
            "Job %r runs without metrics, although %s is set: %s Install the exporters by `pip install "
            '"dagster-ckpt[metrics]"`, or correct the variables of OpenTelemetry.',
            job_name,
            _EXPORTERS,
            in_one_line(redacted(f"{error}".rstrip(".") + ".")),
        )
        return emit
    if meter is None:
        return emit
    metrics = JobMetrics(meter, job_name)

    def both(event: Event) -> None:
        try:
            metrics.observe(event)
        except Exception as error:  # what an instrument of another provider raises
            _log.debug("An event was not measured: %s", error)
        emit(event)

    return both


class JobMetrics:
    """The instruments of one job.

    Args:
        meter: of OpenTelemetry.
        job_name: the attribute ``job_name`` of each metric.
    """

    def __init__(self, meter: Meter, job_name: str) -> None:
        self._attributes = {"job_name": job_name}
        self._gauges = {
            name: meter.create_gauge(f"{METER}.{name}", unit, told) for name, (unit, told) in _GAUGES.items()
        }
        self._counters = {
            name: meter.create_counter(f"{METER}.{name}", description=told) for name, told in _COUNTERS.items()
        }
        for counter in self._counters.values():
            counter.add(0, self._attributes)  # a rate is known from the first failure on

    def observe(self, event: Event) -> None:
        """Measure what an event tells."""
        match event:
            case Started():
                self._set("number_of_retained_checkpoints", len(event.retained))
                if event.restored is not None:
                    self._set("last_checkpoint_restore_timestamp", time.time() * 1000)
            case StartTraced(trace) if trace.committed:
                self._set("restarting_time", trace.seconds * 1000)
            case CheckpointCompleted(metadata, retained):
                self._completed(metadata)
                self._set("number_of_retained_checkpoints", len(retained))
            case SavepointCompleted(metadata):
                self._completed(metadata)
            case CheckpointsSubsumed(_, retained) | CheckpointsDiscarded(_, retained):
                self._set("number_of_retained_checkpoints", len(retained))
            case CheckpointFailed():
                self._count("number_of_failed_checkpoints")
            case CheckpointQuarantined():
                self._count("number_of_quarantined_checkpoints")
            case Restarting():
                self._count("num_restarts")

    def _completed(self, metadata: CheckpointMetadata) -> None:
        self._count("number_of_completed_checkpoints")
        self._set("last_checkpoint_duration", metadata.duration_ms)
        self._set("last_checkpoint_size", metadata.new_bytes)
        self._set("last_checkpoint_full_size", metadata.size)
        self._set("last_completed_checkpoint_id", metadata.checkpoint_id)
        self._set("last_checkpoint_completed_timestamp", seconds_of(metadata.written_at) * 1000)
        for source in metadata.facts.sources:
            if lag := source.lag:
                left = sum(sum(partitions.values()) for partitions in lag.values())
                self._set("pending_records", left, {"source": source.id})

    def _set(self, name: str, value: float, attributes: Mapping[str, str] | None = None) -> None:
        self._gauges[name].set(value, {**self._attributes, **(attributes or {})})

    def _count(self, name: str) -> None:
        self._counters[name].add(1, self._attributes)


def _meter() -> Meter | None:
    """The meter of this process, ``None`` if nobody asks for metrics.

    Raises:
        Exception: an exporter is not installed, or refuses its settings.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    names = [name.strip() for name in os.environ.get(_EXPORTERS, "").split(",")]
    wanted = [name for name in names if name not in {"", "none"}]
    if not wanted and "opentelemetry.sdk.metrics" not in sys.modules:
        return None
    from opentelemetry import metrics  # noqa: PLC0415 - only where somebody asks for metrics
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415

    with _setting_up:
        if not isinstance(metrics.get_meter_provider(), MeterProvider):
            if not wanted:
                return None
            provider = _provider([_reader(name) for name in wanted])
            metrics.set_meter_provider(provider)
            atexit.register(_shut_down, provider)
    return metrics.get_meter(METER, __version__)


def _provider(readers: list[MetricReader]) -> Any:
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "dagster-ckpt"})
    return MeterProvider(readers, resource, shutdown_on_exit=False)


def _reader(name: str) -> MetricReader:
    """The reader of an exporter, as OpenTelemetry names the exporter."""
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader  # noqa: PLC0415

    if name == "otlp":
        protocol = next((os.environ[each] for each in _PROTOCOLS if each in os.environ), "http/protobuf")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    found = entry_points(group="opentelemetry_metrics_exporter", name=name)
    if not found:
        raise LookupError(f"the exporter {name} is not installed.")
    made = next(iter(found)).load()()
    return made if isinstance(made, MetricReader) else PeriodicExportingMetricReader(made)


def _shut_down(provider: Any) -> None:
    """Export what was measured last; a receiver that hangs holds up nobody for long."""
    last = threading.Thread(target=provider.shutdown, name="dagster-ckpt-last-export", daemon=True)
    last.start()
    last.join(_LAST_EXPORT)
