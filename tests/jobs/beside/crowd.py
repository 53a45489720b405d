"""Many jobs with a driver each, and loops of commands, on one storage: each in a process of its own.

    python -m tests.jobs.beside.crowd DIRECTORY --jobs 20 --loops 4 --seconds 180

Prints one JSON document: what happened how often, and every violation. Exit status 0 only without a violation.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from dagster_ckpt.checkpoint import CheckpointCatalog, find_newest, verify_checkpoint
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import PosixFileSystem
from tests.jobs.beside.commands import command_loop
from tests.jobs.beside.drivers import JobDriver
from tests.jobs.beside.place import Place

_FORK = multiprocessing.get_context("fork")


class Crowd:
    """The processes.

    Args:
        place: where they work.
        jobs: how many jobs.
        loops: how many loops of commands.
        seed: of what happens.
    """

    def __init__(self, place: Place, jobs: int, loops: int, seed: int) -> None:
        self._place = place
        self._jobs = range(jobs)
        self._loops = range(loops)
        self._random = random.Random(seed)

    def run(self, seconds: float) -> None:
        """Keep every job running for so long: its driver is started again when it has died."""
        until = time.monotonic() + seconds
        drivers: dict[int, BaseProcess] = {number: self._started(number, until) for number in self._jobs}
        commands = [
            _FORK.Process(target=command_loop, args=(self._place, loop, self._jobs, self._loops, self._seed(), until))
            for loop in self._loops
        ]
        for command in commands:
            command.start()
        while time.monotonic() < until:
            for number, process in drivers.items():
                if not process.is_alive():
                    process.join()
                    drivers[number] = self._started(number, until)
            time.sleep(0.05)
        # The loops end first: what they have begun, they finish beside jobs that run.
        for command in commands:
            command.join()
        for process in drivers.values():
            process.kill()
            process.join()

    def examine(self) -> None:
        """As a new process finds it: nothing that was acknowledged is lost, and everything complete is whole."""
        for number in self._jobs:
            catalog = CheckpointCatalog(PosixFileSystem(self._place.storage), self._place.job(number))
            JobDriver(self._place, number, seed=0).check_newest(find_newest(catalog).metadata)
            for job_id in catalog.job_ids():
                completed, broken = catalog.completed(job_id)
                for error in broken:
                    self._place.violation(str(error))
                for metadata in completed:
                    try:
                        verify_checkpoint(catalog, metadata)
                    except CheckpointError as error:
                        self._place.violation(str(error))
                    self._place.count("complete at the end")

    def _started(self, number: int, until: float) -> BaseProcess:
        driver = JobDriver(self._place, number, seed=self._seed())
        process = _FORK.Process(target=driver.drive, args=(until,))
        process.start()
        return process

    def _seed(self) -> int:
        return self._random.getrandbits(32)


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--loops", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    place = Place(options.directory.absolute())
    crowd = Crowd(place, options.jobs, options.loops, options.seed)
    crowd.run(options.seconds)
    crowd.examine()
    counts, violations = place.told()
    sys.stdout.write(json.dumps({"counts": dict(sorted(counts.items())), "violations": violations}, indent=2) + "\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
