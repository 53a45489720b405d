"""Processes as if on another host: namespaces of their own for the host name and the process ids."""

from __future__ import annotations

import contextlib

import psutil

__all__ = ["ELSEWHERE", "family_seconds", "kill_family"]

#: Before a command: none of the processes here can be looked at or killed from there.
ELSEWHERE = (
    *("unshare", "--user", "--map-root-user", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", 'hostname elsewhere && exec "$@"', "--"),
)


def family_seconds(process: psutil.Process) -> float:
    """The processor time of a process and all below it, in seconds."""
    spent = 0.0
    for member in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = member.cpu_times()
            spent += times.user + times.system
    return spent


def kill_family(process: psutil.Popen) -> None:
    """Kill a process and all below it, and wait until they are gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=60)
