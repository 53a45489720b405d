"""Which host this is, and in which table its process ids mean one process."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import psutil

__all__ = ["process_table", "this_host"]

#: The PID namespace of a host itself, by the inode that Linux gives it at each boot; every container has another one.
_PIDS_OF_THE_HOST = 0xEFFFFFFC


@cache
def this_host() -> str:
    """This host and its boot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    # The boot time is derived from the wall clock and moves with it; Linux has a boot id.
    return f"{platform.node()}/{boot.read_text().strip() if boot.exists() else round(psutil.boot_time())}"


@cache
def process_table() -> str:
    """Where a process id means one process: a container may have its host's name, as where it shares its network."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:  # no Linux
        return this_host()
    return this_host() if namespace == _PIDS_OF_THE_HOST else f"{this_host()}/{namespace}"
