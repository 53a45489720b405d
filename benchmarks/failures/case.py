"""One failure, and how long it stopped a stream."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.testing.dagster_dev import wait_for

__all__ = ["FLINK_STAGES", "STAGES", "Case", "case", "first_commit", "mid_batch", "summarize", "table"]

#: What a case is split into; they follow one another without a gap and add up to ``total``.
STAGES = ("detection", "decision", "process_start", "spark_start", "restore", "first_batch")
#: What a case of Flink is split into.
FLINK_STAGES = ("first_record", "checkpoint")


@dataclass(slots=True)
class Case:
    """One failure.

    Attributes:
        restored: the batch of the checkpoint it went on from; of Flink the number of the checkpoint.
        stages: seconds of each of :data:`STAGES` or :data:`FLINK_STAGES`.
        moments: seconds from the failure to single moments, for a closer look.
        total: seconds from the failure to the first new commit in the output.
        load: the machine's load average at the failure.
        cpu: seconds of processor time of the resumed run's process and its JVM until then; they hardly depend on what
            else the machine does.
        trace: seconds of each step of the resumed start, as ``dagster-ckpt starts`` tells them.
    """

    restored: int
    stages: dict[str, float]
    moments: dict[str, float]
    total: float
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 2))
    cpu: float | None = None
    trace: dict[str, float] = field(default_factory=dict)


def case(failed: float, ends: Mapping[str, float], moments: Mapping[str, float], restored: int) -> Case:
    """A case from the moments its stages ended, in their order."""
    stages, before = {}, failed
    for stage, end in ends.items():
        stages[stage] = round(end - before, 3)
        before = end
    after = {name: round(moment - failed, 3) for name, moment in sorted(moments.items(), key=lambda item: item[1])}
    return Case(restored, stages, after, round(before - failed, 3))


def first_commit(live: CheckpointLocation, restored: int) -> float:
    """When the first batch after the restored one was committed."""
    commit = live.path / "commits" / str(restored + 1)
    wait_for(commit.exists, f"batch {restored + 1} to be committed", seconds=240, poll=0.01)
    return commit.stat().st_mtime


def mid_batch(catalog: CheckpointCatalog, checkpoints: int) -> CheckpointLocation | None:
    """Where the newest start works, when it has completed so many checkpoints and a batch is in flight."""
    chosen = catalog.choice()
    if chosen is None:
        return None
    completed = catalog.completed(chosen[1].job_id)[0]
    if sum(metadata.checkpoint_id >= chosen[1].first_id for metadata in completed) < checkpoints:
        return None
    location = CheckpointLocation(Path(chosen[1].live))
    return location if location.planned() is not None else None


def summarize(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Median, 95th percentile, least and greatest seconds of each stage and of the total."""
    columns = {stage: [found.stages[stage] for found in cases] for stage in cases[0].stages}
    columns["total"] = [found.total for found in cases]
    return {
        name: {
            "median": round(statistics.median(values), 3),
            "p95": round(_p95(values), 3),
            "min": min(values),
            "max": max(values),
        }
        for name, values in columns.items()
    }


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def table(results: Mapping[str, Sequence[Case]]) -> str:
    """A line for each kind of failure, in seconds."""
    lines = [f"{'':<22}{'n':>4}{'median':>9}{'p95':>9}   medians of the parts"]
    for kind, cases in results.items():
        figures = summarize(cases)
        parts = ", ".join(f"{name.replace('_', ' ')} {figures[name]['median']:.2f}" for name in cases[0].stages)
        total = figures["total"]
        lines.append(f"{kind:<22}{len(cases):>4}{total['median']:>9.2f}{total['p95']:>9.2f}   {parts}")
    return "\n".join(lines)
