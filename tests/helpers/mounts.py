"""File systems of the tests' own. A machine that cannot mount fails these tests by name: they are never skipped."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(*arguments: str) -> Iterator[None]:
    """``mount`` with these arguments, the last of which is the directory; unmounted at the end."""
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.fail("this test needs `mount` (Linux, util-linux)")
    if done.returncode:
        pytest.fail(f"this test must be able to `mount {' '.join(arguments)}` (as root): {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", arguments[-1]], check=True)


def fill(ballast: Path) -> None:
    """Fill a small disk to its last byte, with this file."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    assert shutil.disk_usage(ballast.parent).free < 1 << 14  # what else writes there may just have freed a page
