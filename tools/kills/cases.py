"""The cases of ``tools/random_kills.py``: a kill each, and what came of it."""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import pandas as pd
import psutil

from assets.batch_answer import batch_answer, compare
from assets.flights import Lateness, land, landing_plan
from assets.settings import DataPaths
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat, HeartbeatFile
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.testing.dagster_dev import wait_for

DAYS = 60


@dataclass(slots=True)
class Case:
    """One kill and what came of it."""

    number: str
    kind: str
    delete_live: bool
    moment: str = ""
    committed: int | None = None
    in_flight: int | None = None
    restored: str = ""
    kind_of_checkpoint: str = ""
    seconds_to_resume: float = -1
    attempts: int = 0
    rows: int = -1
    lost: int = -1
    doubled: int = -1
    raw_identical: bool = True
    listed: int = 0
    unverified: int = 0
    identical: bool = False


class Kills(ABC):
    """The cases, one after another.

    Args:
        directory: for all files.
        seed: of the moments.
    """

    #: What is killed, in turns.
    KINDS: ClassVar[Sequence[str]]
    #: How often one job is killed, which is then compared.
    OF_A_JOB: ClassVar[int] = 1
    #: How many commits of a start are awaited before the kill: at least and at most. Below zero it is the claim alone.
    COMMITS: ClassVar[tuple[int, int]]
    #: Which result is compared, for the page.
    COMPARED: ClassVar[str]

    def __init__(self, directory: Path, seed: int) -> None:
        self.paths = DataPaths(directory / "data")
        self._seed = seed
        self._random = random.Random(seed)
        #: The live location of the start that is killed.
        self._before: CheckpointLocation | None = None

    def run(self, cases: int, minutes: float, done: list[Case]) -> Iterator[list[Case]]:
        """Run what is not done, as long as there are minutes left to begin a job; gives all so far after each job."""
        give_up = time.monotonic() + 60 * minutes
        # The closing files come after the whole year: only they, and the first days, are kept.
        land(self.paths.landed)
        for file in [file for file in landing_plan() if Lateness.MARKER not in file.rows][DAYS:]:
            (self.paths.landed / file.name).unlink()
        expected = batch_answer(self.paths.landed)
        order = [(self.KINDS[index % len(self.KINDS)], index % 2 == 0) for index in range(cases)]
        with self.ready():
            for begins in range(len(done), cases, self.OF_A_JOB):
                if time.monotonic() > give_up:
                    break
                job = begins // self.OF_A_JOB + 1
                self._random = random.Random(f"{self._seed} {job}")
                kills = order[begins : begins + self.OF_A_JOB]
                number = str(job) if self.OF_A_JOB == 1 else f"{job}.{{}}"
                of_job = [Case(number.format(kill), *how) for kill, how in enumerate(kills, start=1)]
                self._one(of_job)
                self._judge(of_job, expected)
                done = [*done, *of_job]
                print(*(json.dumps(asdict(case)) for case in of_job), sep="\n", flush=True)
                yield done

    @property
    @abstractmethod
    def job(self) -> str:
        """The name of the job."""

    @property
    @abstractmethod
    def output(self) -> Path:
        """Where the job writes."""

    @abstractmethod
    def ready(self) -> AbstractContextManager[object]:
        """What all cases need."""

    @abstractmethod
    def start(self, kind: str) -> None:
        """Start the job, so that the kind of process is there to be killed."""

    @abstractmethod
    def kill(self, case: Case, heartbeat: Heartbeat) -> None:
        """Kill, call :meth:`lose` when all that is killed is gone, and see to it that the job is resumed."""

    @abstractmethod
    def read(self) -> pd.DataFrame:
        """The rows that a reader finds."""

    @abstractmethod
    def await_quiet(self) -> None:
        """Wait until nothing of a job that has ended runs."""

    def read_raw(self) -> pd.DataFrame | None:
        """The rows in all files of the output, where nothing else may be there."""
        return None

    def lose(self, case: Case) -> None:
        """Take down how far the killed run came, and delete its live location where the case wants it."""
        if (before := self._before) is not None:
            case.committed, case.in_flight = before.last_committed(), before.planned()
            if case.delete_live:
                shutil.rmtree(before.path, ignore_errors=True)

    def _one(self, kills: list[Case]) -> None:
        for directory in (self.output, Path(self.paths.checkpoints)):
            shutil.rmtree(directory, ignore_errors=True)
        self.start(kills[0].kind)
        epoch = 0
        for case in kills:
            heartbeat = self._moment(case, epoch)
            epoch, self._before = heartbeat.epoch, self._location()
            killed = time.monotonic()
            self.kill(case, heartbeat)
            wait_for(partial(self._is_resumed, self._before), f"kill {case.number} to be resumed", seconds=600)
            case.seconds_to_resume = round(time.monotonic() - killed, 1)
            chosen = self.catalog().choice()
            if chosen is not None and chosen[1].restored is not None:
                case.restored = chosen[1].restored.rpartition("/")[2]
                case.kind_of_checkpoint = self.catalog().resolve(chosen[1].restored).kind
        wait_for(self._ended, f"the job of kill {kills[-1].number} to end", seconds=600)
        for case in kills:
            case.attempts = self.catalog().records.epochs.highest()
        self.await_quiet()

    def _begins(self) -> int:
        """The first batch of the newest start."""
        chosen = self.catalog().choice()
        restored = None if chosen is None else chosen[1].restored
        return 0 if restored is None else self.catalog().resolve(restored).batch + 1

    def _is_resumed(self, before: CheckpointLocation | None) -> bool:
        location = self._location()
        return (location is not None and (before is None or location.path != before.path)) or self._ended()

    def _moment(self, case: Case, epoch: int) -> Heartbeat:
        """Wait for a start after ``epoch`` and random commits of it, and a random while longer."""
        commits = self._random.randint(*self.COMMITS)
        pause = self._random.uniform(0, 1.0)
        batch = commits + self._begins()
        case.moment = f"{pause:.2f} s after " + ("the claim" if commits < 0 else f"commit {batch}")

        def reached() -> Heartbeat | None:
            heartbeat = HeartbeatFile(self.catalog().filesystem, self.job).read()
            if heartbeat is None or heartbeat.epoch <= epoch:
                return None
            if commits < 0 and case.kind != "JVM":
                return heartbeat
            location = self._location()
            committed = None if location is None else location.last_committed()
            return heartbeat if committed is not None and committed >= batch else None

        heartbeat = wait_for(reached, case.moment, seconds=600, poll=0.01)
        time.sleep(pause)
        return heartbeat

    def _judge(self, kills: list[Case], expected: pd.DataFrame) -> None:
        found = self.read()
        comparison = compare(expected, found)
        case = kills[-1]
        case.rows, case.lost, case.doubled = len(found), len(comparison.missing), len(comparison.surplus)
        if (raw := self.read_raw()) is not None:
            case.raw_identical = compare(expected, raw).identical
        catalog = self.catalog()
        for job_id in catalog.job_ids():
            completed, broken = catalog.completed(job_id)
            case.listed += len(completed) + len(broken)
            case.unverified += len(broken)
            for metadata in completed:
                try:
                    verify_checkpoint(catalog, metadata)
                except CheckpointError as error:
                    print(error, file=sys.stderr)
                    case.unverified += 1
        case.identical = comparison.identical and case.raw_identical and case.unverified == 0
        judged = ("rows", "lost", "doubled", "raw_identical", "listed", "unverified", "identical")
        for other in kills[:-1]:
            for name in judged:
                setattr(other, name, getattr(case, name))

    def catalog(self) -> CheckpointCatalog:
        """The job's."""
        return CheckpointCatalog(open_filesystem(str(self.paths.checkpoints)), self.job)

    def _location(self) -> CheckpointLocation | None:
        chosen = self.catalog().choice()
        return None if chosen is None else CheckpointLocation(Path(chosen[1].live))

    def _ended(self) -> bool:
        epochs = self.catalog().records.epochs
        highest = epochs.highest()
        end = epochs.read_end(highest) if highest else None
        if end is not None and end.status == "FAILED":
            raise RuntimeError(f"the job gave up: {end.reason}")
        return end is not None and end.status == "FINISHED"


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
