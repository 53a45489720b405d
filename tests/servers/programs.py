"""The servers that other people wrote: each is built or installed once, into a cache directory of the user.

``python3 tests/servers/programs.py`` makes all of them. Nothing but Python's own library is needed for that, so that
they are made beside the project's environment.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["azurite", "fake_gcs_server", "versitygw"]


def fake_gcs_server() -> Path:
    """The program of fake-gcs-server, built if it is not there."""
    return _of_go("github.com/fsouza/fake-gcs-server", "v1.56.1")


def versitygw() -> Path:
    """The program of versitygw, built if it is not there."""
    return _of_go("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")


def azurite() -> Path:
    """The program of Azurite, installed if it is not there."""
    package = "azurite@3.35.0"

    def install(directory: Path) -> Path:
        command = [_found("npm"), "install", "--no-audit", "--no-fund", "--prefix", str(directory / "made"), package]
        subprocess.run(command, check=True)
        return directory / "made"

    return _made_once(package.replace("@", "-"), install) / "node_modules" / ".bin" / "azurite-blob"


def _of_go(package: str, version: str) -> Path:
    name = package.rpartition("/")[2]

    def build(directory: Path) -> Path:
        subprocess.run(
            [_found("go"), "install", f"{package}@{version}"],
            check=True,
            # Without cgo a compiler for C is not needed, nor is the program of another machine's libc.
            env={**os.environ, "GOBIN": str(directory), "CGO_ENABLED": "0"},
        )
        return directory / name

    return _made_once(f"{name}-{version}", build)


def _found(tool: str) -> str:
    path = shutil.which(tool)
    assert path is not None, f"{tool} is missing; see tools/require-{tool}"
    return path


def _made_once(name: str, make: Callable[[Path], Path]) -> Path:
    """What has a name, with its version, in the cache; the first caller of a machine makes it, and others wait."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dagster-ckpt-tests"
    target = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as directory:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            make(Path(directory)).replace(target)
    return target


if __name__ == "__main__":
    for program in (azurite, fake_gcs_server, versitygw):
        program()
