"""Opens a directory that its user may not enter, through every door. Run in a process of its own, as another user."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from click.testing import CliRunner

from dagster_ckpt.cli import main
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import PosixFileSystem
from tests.unit.filesystem.test_paths import doors

_NOBODY = 65534


def knock(closed: Path) -> None:
    """Try every door to what is below ``closed``: each opens, or gives an error of this package."""
    for spelling in (f"{closed}/below", f"file://{closed}/below", f"file://{closed}/be%20low"):
        for opened in doors(spelling, PosixFileSystem(closed)).values():
            with contextlib.suppress(CheckpointError):
                opened()
        CliRunner().invoke(main, ["list", "--path", spelling], catch_exceptions=False)


if __name__ == "__main__":
    knock(Path(sys.argv[1]))  # also imports what only root may be able to read
    if os.geteuid() == 0:
        os.seteuid(_NOBODY)
    try:
        next(Path(sys.argv[1]).iterdir(), None)
    except PermissionError:
        knock(Path(sys.argv[1]))
    else:
        sys.exit("this user may enter the directory")
