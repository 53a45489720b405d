"""A loop of commands beside running jobs, and which of their answers are true."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from click.testing import CliRunner, Result

from dagster_ckpt.cli import main
from tests.jobs.beside.place import Place

#: What a job without a checkpoint is told as: at its beginning, and after it has discarded all.
_NOTHING = ("There is no job", "has no checkpoint in", "has no completed checkpoint", "nothing to go on from")
#: Of each command, the errors that can be true.
_ERRORS = {
    "list": _NOTHING,
    "retention": _NOTHING,
    "status": _NOTHING,
    "describe": (*_NOTHING, "Cannot find"),
    "verify": (*_NOTHING, "Cannot find", "was deleted"),
    "pin": (*_NOTHING, "Cannot find", "is being deleted"),
    "unpin": (),
    "sweep": ("is being run by", "is not over", "was started while", *_NOTHING),
    "savepoint": (
        *_NOTHING,
        "has nothing to save",
        "was deleted",
        "Cannot find",
        "did not",
        "not answered",
        "no answer within",  # its driver died when the time was over, and no other is started
        "ended",
        "older than its timeout",
        "No batch has committed",
    ),
    "dispose": ("no savepoint to dispose of", "Cannot find"),
}
#: What is told of damage, and nothing here is damaged.
_DAMAGE = (
    ") is gone",
    "is gone: epoch",
    "was changed",
    "truncated",
    "cannot be believed",
    "cannot be restored",
    "Traceback",
)


def command_loop(place: Place, loop: int, jobs: Sequence[int], loops: Sequence[int], seed: int, until: float) -> None:
    """Run commands until the time is over; then take off all pins, and dispose of all savepoints of this loop."""
    commands = Commands(place, random.Random(seed), [place.job(number) for number in jobs])
    own = [place.job(number) for number in jobs if number % len(loops) == loop]  # nobody else takes off its pins
    try:
        while time.monotonic() < until:
            commands.one(own)
        commands.end()
    except BaseException:
        place.violation(f"loop {loop}: {traceback.format_exc()}")
        raise


class Commands:
    """Commands, each judged by its exit status, its output, and what is stored afterwards."""

    def __init__(self, place: Place, chance: random.Random, jobs: Sequence[str]) -> None:
        self._place = place
        self._chance = chance
        self._jobs = jobs
        self._pinned: list[tuple[str, str]] = []
        self._saved: list[tuple[str, str]] = []

    def one(self, own: Sequence[str]) -> None:
        """One command, drawn at random."""
        job = self._chance.choice(self._jobs)
        match self._chance.randrange(20):
            case 0:
                self._call("list")
            case 1 | 2:
                self._call("list", job, "--json")
            case 3 | 4 | 5:
                result = self._call("verify", job)
                if (result.exit_code == 0) != ("  verified" in result.output):
                    self._violation(result, "verify succeeds where something is verified")
            case 6 | 7 | 8:
                self._call("retention", job, "--num-retained", "1", "--json")
            case 9:
                self._call(self._chance.choice(["describe", "status"]), job)
            case 10 | 11:
                self._call("sweep", *([] if self._chance.random() < 0.2 else [job]))
            case 12:
                self._call(
                    "sweep", job, "--older-than", "10 s", *(["--dry-run"] if self._chance.random() < 0.3 else [])
                )
            case 13 | 14:
                self._pin(self._chance.choice(own))
            case 15 | 16 if self._pinned:
                self._unpin(self._pinned.pop(self._chance.randrange(len(self._pinned))))
            case 17:
                self._save(job)
            case 18 | 19 if self._saved:
                self._dispose(*self._saved.pop(self._chance.randrange(len(self._saved))))
            case _:
                self._call("list", job)

    def end(self) -> None:
        """Take back what this loop has made."""
        while self._pinned:
            self._unpin(self._pinned.pop())
        while self._saved:
            self._dispose(*self._saved.pop())

    def _pin(self, job: str) -> None:
        result = self._call("pin", job, "latest", "--reason", "of the crowd")
        pinned = (job, result.stdout.partition(" ")[0])
        if result.exit_code == 0 and pinned not in self._pinned:
            self._pinned.append(pinned)

    def _unpin(self, pinned: tuple[str, str]) -> None:
        job, checkpoint = pinned
        verified = self._call("verify", job, checkpoint)
        if verified.exit_code != 0:
            self._violation(verified, f"{checkpoint} of {job} was pinned, and is not whole")
        self._call("unpin", job, checkpoint)

    def _save(self, job: str) -> None:
        result = self._call("savepoint", job, "--to", str(self._place.savepoints), "--timeout", "20 s")
        if result.exit_code == 0:
            self._saved.append((job, result.stdout.strip()))

    def _dispose(self, job: str, pointer: str) -> None:
        verified = self._call("verify", job, pointer)
        if verified.exit_code != 0:
            self._violation(verified, f"savepoint {pointer} is not whole")
        result = self._invoke("dispose", pointer)
        if result.exit_code != 0 or Path(pointer).exists():
            self._violation(result, f"savepoint {pointer} is still there")

    def _call(self, command: str, *arguments: str) -> Result:
        return self._invoke(command, *arguments, "--path", str(self._place.storage))

    def _invoke(self, command: str, *arguments: str) -> Result:
        result = CliRunner().invoke(main, [command, *arguments])
        self._place.count(f"{command}: exit {result.exit_code}")
        raw = result.exception is not None and not isinstance(result.exception, SystemExit)
        if raw:
            told = "".join(traceback.format_exception(result.exception))
            self._place.violation(f"{command} {arguments} raised {told}")
        elif any(damage in result.output for damage in _DAMAGE):
            self._violation(result, f"{command} {arguments} tells of damage")
        elif result.exit_code not in {0, 1} or (
            result.exit_code == 1 and not any(told in result.output for told in _ERRORS[command])
        ):
            self._violation(result, f"{command} {arguments} fails")
        return result

    def _violation(self, result: Result, what: str) -> None:
        self._place.violation(f"{what}: exit {result.exit_code}\n{result.output}")
