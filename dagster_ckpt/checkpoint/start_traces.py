"""Where the seconds of each start went: one record per epoch in ``control/starts/``. Nothing is decided by them."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ckpt.checkpoint.format import CONTROL_DIR, Epoch, Line, RunId, Seconds, encode_record, read_record
from dagster_ckpt.errors import CorruptRecord, PublishConflict
from dagster_ckpt.filesystem import FileSystem

__all__ = ["MONOTONIC", "WALL", "StartTrace", "StartTraces", "Step"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"e-[0-9]{10}")
#: Records kept: as many as of the epochs.
_KEPT = 200
#: A step within one process.
MONOTONIC = "monotonic"
#: A step between processes, or placed by another process: a clock that is set meanwhile changes the figure.
WALL = "wall"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a start.

    Attributes:
        name: for people.
        began: seconds since the trace began, never negative.
        seconds: how long the step took, never negative. Steps beside one another overlap.
        clock: the clock that ``began`` or ``seconds`` depends on, :data:`MONOTONIC` or :data:`WALL`.
    """

    name: Line
    began: Seconds
    seconds: Seconds
    clock: Line


@dataclass(frozen=True, slots=True)
class StartTrace:
    """The steps of one start, from the failure before it, or from its launch, to the first committed batch.

    Attributes:
        epoch: of the start.
        run_id: the run of the start.
        began_at: ISO 8601 in UTC.
        committed: whether the start came to its first committed batch.
        steps: in the order in which they began; an unknown step is left out.
    """

    epoch: Epoch
    run_id: RunId
    began_at: Line
    committed: bool
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """From the beginning of the trace to the end of its last step."""
        return max((step.began + step.seconds for step in self.steps), default=0.0)

    @property
    def by_name(self) -> dict[str, float]:
        """The seconds of each step; steps of one name, such as two restores in a fallback, are added up."""
        found: dict[str, float] = {}
        for step in self.steps:
            found[step.name] = found.get(step.name, 0.0) + step.seconds
        return found


class StartTraces:
    """The recorded traces of one job name.

    Args:
        filesystem: the job's storage.
        job_name: the job's stable name.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self._filesystem = filesystem
        self._directory = f"{job_name}/{CONTROL_DIR}/starts"

    def add(self, trace: StartTrace) -> None:
        """Record a trace, and forget the oldest; a second trace of an epoch changes nothing.

        Raises:
            StorageError: the storage failed.
        """
        path = self._path(f"e-{trace.epoch:010}")
        with contextlib.suppress(PublishConflict):
            self._filesystem.create(path, encode_record(trace, path))
        for oldest in self._names()[:-_KEPT]:
            self._filesystem.remove(self._path(oldest))

    def newest(self, count: int) -> Sequence[StartTrace]:
        """The last ``count`` traces, the newest last; an unreadable record is logged and left out."""
        found = []
        for name in self._names()[-count:]:
            try:
                trace = read_record(self._filesystem, self._path(name), StartTrace, epoch=int(name[2:]))
            except CorruptRecord as error:
                _log.warning("The trace of a start is left out: %s", error.message)
                continue
            if trace is not None:
                found.append(trace)
        return found

    def _names(self) -> list[str]:
        return sorted(entry.name for entry in self._filesystem.list(self._directory) if _NAME.fullmatch(entry.name))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
