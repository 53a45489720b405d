"""The servers of the tests that are built or installed: once, into a cache directory of the user."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["made_once"]


def made_once(name: str, make: Callable[[Path], Path]) -> Path:
    """What has a name in the cache; the first caller of a machine makes it, and others wait.

    Args:
        name: with the version.
        make: makes a file or a directory in the empty directory that it is given, and returns where.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dagster-ckpt-tests"
    target = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as directory:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            make(Path(directory)).replace(target)
    return target
