"""Where the processes of a crowd work, and what they tell each other."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """Directories below one.

    Attributes:
        root: the directory.
    """

    root: Path

    def __post_init__(self) -> None:
        for directory in (self.storage, self.savepoints, self._notes):
            directory.mkdir(parents=True, exist_ok=True)

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def savepoints(self) -> Path:
        return self.root / "savepoints"

    @property
    def _notes(self) -> Path:
        return self.root / "notes"

    @staticmethod
    def job(number: int) -> str:
        """The name of a job."""
        return f"job_{number}"

    def work(self, number: int) -> Path:
        """The working directory of a job's driver."""
        return self.root / "work" / str(number)

    def acknowledge(self, number: int, reference: str | None, key: tuple[int, int] = (0, 0)) -> None:
        """Note the newest checkpoint that was reported as complete; ``None`` before all are discarded."""
        self._noted(number).write_text(json.dumps([reference, key]), encoding="utf-8")

    def acknowledged(self, number: int) -> tuple[str | None, tuple[int, int]]:
        """The newest checkpoint that was reported as complete, and its (epoch, id)."""
        # A driver that was killed while it noted this has left nothing: what it had noted before may be older.
        try:
            reference, (epoch, number) = json.loads(self._noted(number).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None, (0, 0)
        return reference, (epoch, number)

    def count(self, what: str) -> None:
        """Count something that happened."""
        self._append("counts", what)

    def violation(self, what: str) -> None:
        """Note what must not happen."""
        self._append("violations", what)

    def told(self) -> tuple[Counter[str], list[str]]:
        """The counts and the violations of all processes."""
        counts, violations = (
            [json.loads(line) for file in self._notes.glob(f"{kind}-*") for line in file.read_text().splitlines()]
            for kind in ("counts", "violations")
        )
        return Counter(counts), violations

    def _noted(self, number: int) -> Path:
        return self._notes / f"acknowledged-{number}"

    def _append(self, kind: str, what: str) -> None:
        with (self._notes / f"{kind}-{os.getpid()}").open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(what)}\n")
