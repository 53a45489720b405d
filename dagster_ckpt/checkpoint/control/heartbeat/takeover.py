"""Make room for a run that is to take a job over: refuse beside a living run, kill what a dead run has left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dagster_ckpt.checkpoint.control.heartbeat.beat import Heartbeat
from dagster_ckpt.checkpoint.control.heartbeat.heart import beating_here
from dagster_ckpt.checkpoint.control.heartbeat.heartbeat_file import HeartbeatFile
from dagster_ckpt.checkpoint.processes import ProcessIdentity, is_proven
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import JobAlreadyRunning
from dagster_ckpt.shown_text import path_option

__all__ = ["free_job"]

_log = logging.getLogger(__name__)


def free_job(file: HeartbeatFile, clock: Clock, wait: Callable[[float], object]) -> Sequence[ProcessIdentity]:
    """Make sure that nobody else drives the job: refuse if somebody does, kill what is left of the dead.

    A heartbeat alone kills nobody: a process is killed only if it proves itself
    (:func:`~dagster_ckpt.checkpoint.processes.is_proven`). If one is alive and not proven, none is killed.

    Args:
        file: the heartbeat of the job.
        clock: wall and monotonic time.
        wait: sleeps for so many seconds.

    Returns:
        the processes that had to be killed.

    Raises:
        JobAlreadyRunning: another run of the job is alive, or nothing tells whether a process that a dead run left
            is of this job.
        CorruptCheckpoint: the heartbeat cannot be read.
    """
    heartbeat = file.read()
    if heartbeat is None or heartbeat.stopped:
        return ()
    if heartbeat.processes[0].is_this_one:
        if file.key in beating_here:
            raise _already_running(file, heartbeat)
        return ()  # an earlier run of this process, which could not write its last beat
    heartbeat, dead = file.watched(clock, wait)
    if heartbeat is None or heartbeat.stopped:
        return ()
    if dead is None:
        raise _already_running(file, heartbeat)
    driver = heartbeat.processes[0]
    left = [process for process in heartbeat.processes if process.is_here and process.is_alive()]
    for process in left:
        if not is_proven(process, driver, file.key):
            raise _unproven(file.key[1], heartbeat, dead, process, file.url)
    killed = []
    for process in left:
        try:
            if process.kill():
                _log.warning("Killed process %d, which a run declared dead had left behind", process.pid)
                killed.append(process)
        except OSError as error:
            raise _cannot_kill(file.key[1], heartbeat, process) from error
    return tuple(killed)


def _already_running(file: HeartbeatFile, heartbeat: Heartbeat) -> JobAlreadyRunning:
    (url, job_name), driver = file.key, heartbeat.processes[0]
    error = JobAlreadyRunning(
        f"Job {job_name!r} is already being run by run {heartbeat.run_id} "
        f"(process {driver.pid} on {driver.host.partition('/')[0]}, epoch {heartbeat.epoch}).",
        hint=f"Terminate run {heartbeat.run_id} in Dagster; or, if `dagster-ckpt run` drives the job, end it with "
        f"`dagster-ckpt cancel {job_name} {path_option(url)}`; or wait until the run has ended. This run changed "
        "nothing.",
    )
    error.by = heartbeat.run_id
    return error


def _unproven(
    job_name: str, heartbeat: Heartbeat, dead: str, process: ProcessIdentity, heartbeat_url: str
) -> JobAlreadyRunning:
    return JobAlreadyRunning(
        f"Run {heartbeat.run_id} of job {job_name!r} is dead ({dead}), but process {process.pid}, which its heartbeat "
        "names, is alive and may still write. Nothing proves that the process is of this job, so it was not killed.",
        hint=f"Look at the process with `ps -f -p {process.pid}`. If it is of job {job_name!r}, end it with `kill -9 "
        f"{process.pid}`; if it is not, delete {heartbeat_url}. Then launch the job again. This run changed nothing.",
    )


def _cannot_kill(job_name: str, heartbeat: Heartbeat, process: ProcessIdentity) -> JobAlreadyRunning:
    return JobAlreadyRunning(
        f"Process {process.pid} of the dead run {heartbeat.run_id} of job {job_name!r} is still alive, may still "
        "write, and could not be killed.",
        hint=f"End process {process.pid}, or restart the host, and launch the job again.",
    )
