"""What is in a batch: the input from each source, the outcome, and the failures.

The report is read from the storage, and from the live location if it is on this host; no JVM is needed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dagster_ckpt.checkpoint import (
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    Failure,
    PlannedBatch,
    find_newest,
    line_of_descent,
)
from dagster_ckpt.clock import iso, told_ms
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.paths import unescaped
from dagster_ckpt.shown_text import counted
from dagster_ckpt.spark import PlannedBatches, fingerprint, local_file, planned_files, planned_offsets, recorded_live
from dagster_ckpt.stored_json import Json

__all__ = ["BatchReport", "ReadFile", "ReadSource", "report_batch"]


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that a batch reads.

    Attributes:
        path: its URI, as Spark logged it.
        bytes: its size now, ``None`` when the file is gone or cannot be reached.
        exists: whether the file still exists, ``None`` when this host cannot tell.
    """

    path: str
    bytes: int | None
    exists: bool | None


@dataclass(frozen=True, slots=True)
class ReadSource:
    """What a batch reads from one source.

    Attributes:
        source: the source's id in the write-ahead log.
        start: the offset after which the batch reads, ``None`` for the beginning, or when it is no longer known.
        end: the last offset that the batch reads, ``None`` while the source has no data.
        files: the files that the batch reads from a file source.
    """

    source: str
    start: Json
    end: Json
    files: Sequence[ReadFile]


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A batch.

    Attributes:
        job: the job.
        job_id: the lineage.
        batch: its number.
        planned_at: its processing time, ISO 8601 in UTC; a batch that runs again keeps this time.
        watermark: the batch's watermark, ISO 8601 in UTC, ``None`` when there is none.
        plan: fingerprint of the batch's input, as in the records of failures.
        committed: whether the batch is committed, ``None`` when this host cannot tell.
        checkpoint: the oldest retained checkpoint that covers the batch, ``None`` when there is none.
        failures: its failures, oldest first.
        sources: the batch's input.
    """

    job: str
    job_id: str
    batch: int
    planned_at: str
    watermark: str | None
    plan: str
    committed: bool | None
    checkpoint: str | None
    failures: Sequence[Failure]
    sources: Sequence[ReadSource] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The report for people."""
        became = {True: "committed", False: "planned, not committed", None: "planned; not known whether committed"}
        covered = f", covered by {self.checkpoint}" if self.checkpoint else ", in no checkpoint"
        yield f"batch {self.batch} of job {self.job}, lineage {self.job_id}: {became[self.committed]}{covered}"
        yield f"planned at {self.planned_at}, watermark {self.watermark or 'none'}"
        for source in self.sources:
            yield f"source {source.source}: after {json.dumps(source.start)} up to {json.dumps(source.end)}"
            for file in source.files:
                size = {True: f"{file.bytes or 0:,}", False: "gone", None: "?"}[file.exists]
                yield f"  {size:>14}  {file.path}"
        yield f"failed {counted(len(self.failures), 'time')}"
        for failure in self.failures[-1:]:
            yield f"  last at {iso(failure.at)} in run {failure.run_id}: {failure.reason}"


def report_batch(catalog: CheckpointCatalog, batch: int | None) -> BatchReport:
    """What is in a batch.

    Args:
        catalog: of the job.
        batch: its number, ``None`` for the newest planned batch.

    Raises:
        CheckpointNotFound: the batch plan is not known, or the job has no batch plan.
        CorruptCheckpoint: a stored file differs from what was written.
    """
    chosen = catalog.choice()
    if chosen is None:
        raise CheckpointNotFound(
            f"Job {catalog.job_name!r} has never run in {catalog.filesystem.url}.",
            hint="Is --path the checkpoint path? `dagster-ckpt status` shows the jobs there.",
        )
    plans = _Plans(catalog, chosen[1])
    number = plans.newest() if batch is None else batch
    plan = None if number is None else plans.plan(number)
    if number is None or plan is None:
        known = _ranges(plans.known())
        raise CheckpointNotFound(
            f"The plan of {'any batch' if number is None else f'batch {number}'} of job {catalog.job_name!r} is not "
            f"known{f', those of {known} are' if known else ''}.",
            hint="Plans are kept from the oldest retained checkpoint on, which `dagster-ckpt list "
            f"{catalog.job_name} {catalog.filesystem.path_option}` shows.",
        )
    offsets, digest = planned_offsets(plan), fingerprint(plan)
    covered = _covered(catalog, chosen[1].job_id, number)
    return BatchReport(
        job=catalog.job_name,
        job_id=chosen[1].job_id,
        batch=number,
        planned_at=told_ms(offsets.timestamp_ms),
        watermark=told_ms(offsets.watermark_ms) if offsets.watermark_ms else None,
        plan=digest,
        committed=True if covered is not None else plans.committed(number),
        checkpoint=None if covered is None else covered.reference,
        failures=_failures(catalog, number, digest),
        sources=_sources(plan, plans.start(number), catalog.filesystem),
    )


class _Plans:
    """The batch plans of a lineage: from the archive, or from the live location, which is ahead of the archive."""

    def __init__(self, catalog: CheckpointCatalog, choice: Choice) -> None:
        self._catalog = catalog
        self._archive = catalog.records.plans(choice.job_id)
        live = recorded_live(choice, catalog.filesystem)
        self._live = None if live is None else live.location()
        self._job_id = choice.job_id

    def newest(self) -> int | None:
        live = None if self._live is None else self._live.planned()
        return self._archive.newest_batch() if live is None else live

    def known(self) -> list[int]:
        live = None if self._live is None else self._live.planned()
        return sorted({*self._archive.batches(), *([] if live is None else [live])})

    def plan(self, batch: int) -> PlannedBatch | None:
        newest = None if self._live is None else self._live.planned()
        return (self._in_live(batch) if newest == batch else None) or self._archive.planned(batch)

    def committed(self, batch: int) -> bool | None:
        if self._live is None:
            return None
        last = self._live.last_committed()
        return last is not None and last >= batch

    def start(self, batch: int) -> dict[str, Json]:
        """The end of the previous batch, by source; empty when that batch does not exist, or is not known."""
        before = self._archive.planned(batch - 1)
        if before is None:
            before = self._in_live(batch - 1)
        if before is not None:
            offsets = planned_offsets(before)
            return {source: offsets.offset(source) for source, _ in offsets.sources}
        for metadata in self._catalog.completed(self._job_id)[0]:
            if metadata.batch == batch - 1:
                return {source.id: source.offset for source in metadata.facts.sources}
        return {}

    def _in_live(self, batch: int) -> PlannedBatch | None:
        if self._live is None:
            return None
        with contextlib.suppress(OSError, CheckpointError):
            return next(iter(PlannedBatches(self._live, batch - 1).new(batch)), None)
        return None


def _covered(catalog: CheckpointCatalog, job_id: str, batch: int) -> CheckpointMetadata | None:
    newest = find_newest(catalog).metadata
    if newest is None:
        return None
    line = line_of_descent(newest, catalog.completed(job_id)[0])
    return min((item for item in line if item.batch >= batch), key=lambda item: item.batch, default=None)


def _failures(catalog: CheckpointCatalog, batch: int, plan: str) -> list[Failure]:
    log = catalog.records.failures
    every = [failure for series in log.series() for failure in log.of(series)]
    return [failure for failure in every if failure.batch == batch and failure.plan in {None, plan}]


def _sources(plan: PlannedBatch, start: dict[str, Json], storage: FileSystem) -> list[ReadSource]:
    offsets = planned_offsets(plan)
    return [
        ReadSource(
            source, start.get(source), offsets.offset(source), [_look_at(uri, storage) for uri in _files(plan, source)]
        )
        for source, _ in offsets.sources
    ]


def _files(plan: PlannedBatch, source: str) -> list[str]:
    of_source = {name: text for name, text in plan.files.items() if name.startswith(f"sources/{source}/")}
    return planned_files(PlannedBatch(plan.batch, of_source))


def _look_at(uri: str, storage: FileSystem) -> ReadFile:
    """What is known of an input file. The storage names the file, so no host is asked that nobody configured."""
    try:
        if (file := local_file(uri)) is not None:
            return ReadFile(uri, file.stat().st_size, True)
        directory, _, name = unescaped(uri).rpartition("/")
        if uri.startswith("hdfs:"):
            return ReadFile(uri, None, None)  # a look would start a JVM
        return ReadFile(uri, open_filesystem(directory, like=storage).size(name), True)
    except FileNotFoundError:
        return ReadFile(uri, None, False)
    except Exception:  # no access, no driver, no network, another kind of storage: only the query can tell
        return ReadFile(uri, None, None)


def _ranges(batches: Sequence[int]) -> str:
    """``3 to 9, 12`` for people."""
    if not batches:
        return ""
    breaks = [(before, after) for before, after in pairwise(batches) if after != before + 1]
    firsts = [batches[0], *(after for _, after in breaks)]
    lasts = [*(before for before, _ in breaks), batches[-1]]
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(firsts, lasts, strict=True))
