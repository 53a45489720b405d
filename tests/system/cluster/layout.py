"""What the driver process and the test agree on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

JOB = "delays"
FILES_PER_TRIGGER = 2


@dataclass(frozen=True)
class Shared:
    """The directory that driver, executors and test share."""

    root: Path

    @property
    def landed(self) -> Path:
        return self.root / "landed"

    @property
    def output(self) -> Path:
        return self.root / "delays"

    @property
    def storage(self) -> Path:
        return self.root / "checkpoints"

    @property
    def live(self) -> Path:
        return self.root / "live"
