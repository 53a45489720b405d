"""``spark-submit`` as a process: started so that it outlives its Dagster run, and asked why it has ended."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dagster_ckpt.errors import SparkNotStarted, StorageUnusable
from dagster_ckpt.filesystem import default_root, make_working_directory
from dagster_ckpt.orchestration.attending.masters import CLUSTER, KUBERNETES, YARN
from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["REFUSED", "SubmittedProcess"]

#: What the driver's last word begins with, when it ends before it has taken the job over.
REFUSED = "dagster-ckpt driver: "
_LINES = 8
#: What each spark-submit says, whatever becomes of its driver.
_NOISE = ("WARNING: Using incubator modules", "Using Spark's default log4j profile", " WARN NativeCodeLoader")
#: How spark-submit tells how a driver on the cluster has ended.
_STATE = "State of driver"
#: The id that YARN gives.
_APPLICATION = re.compile(r"\bapplication_\d+_\d+\b")
#: The pod of the driver.
_POD = re.compile(r"\bpod name: (\S+)")
#: How a cluster refuses, and what to do about it.
_REFUSALS = (
    (
        re.compile(r"\bSasl(Message|Exception)\b"),
        "The cluster asks for a secret: set spark.authenticate to true and spark.authenticate.secret in "
        "conf/spark-defaults.conf of spark_home, because no secret of conf is on a command line.",
    ),
    (
        re.compile(r"does not have permission to submit|cannot submit applications to queue|AccessControlException"),
        "YARN does not allow it to this user: set spark.yarn.queue to a queue that the user may use, or have the user "
        "added to the acl_submit_applications of the queue.",
    ),
    (
        re.compile(r'is forbidden: User "'),
        "Kubernetes does not allow it to this account: bind the account to a role that may make pods, configmaps and "
        "services in the namespace.",
    ),
)
_LONGEST = 2_000
#: The outputs of earlier drivers of a job that are kept, for people; and the length of the ids of Dagster's runs.
_KEPT, _RUN_ID = 10, 36


class SubmittedProcess:
    """A call of ``spark-submit``, in a session of its own.

    Args:
        command: the call.
        environment: of the process.
        job: whose driver it starts.
        run_id: the run that submits the driver.

    Raises:
        SparkNotStarted: there is no such program, it may not be executed, or its output cannot be written.
        StorageUnusable: another user has the directory of the output.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], job: str, run_id: str) -> None:
        directory = default_root() / "drivers"
        #: In the user's directory for temporary files.
        self.log = directory / f"{job}-{run_id}.log"
        try:
            make_working_directory(directory, default_root())
            _forget_old(directory, job)
            output = self.log.open("ab")
        except StorageUnusable:
            raise
        except OSError as error:
            raise SparkNotStarted(
                f"{self.log} is for the driver's output and cannot be written: {error.strerror}. No driver was "
                "started.",
                hint=f"Make room in {default_root().parent}, let this user write there, or let TMPDIR name another "
                "directory in the environment of the Dagster run.",
            ) from error
        try:
            with output:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(output, fcntl.LOCK_SH)  # until the last process that writes has ended
                self._process = subprocess.Popen(  # noqa: S603
                    command,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # what ends the Dagster run's group of processes must not end the driver
                )
        except OSError as error:
            raise SparkNotStarted(
                f"{command[0]} cannot be started: {error.strerror}. No driver was started.",
                hint="Install pyspark from its wheel where the Dagster run is, or set spark_home of "
                "SparkSubmitResource to a Spark whose bin/spark-submit this user may execute.",
            ) from error

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it, and the driver if the driver is its child."""
        if not self.has_ended:  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def forget(self) -> None:
        """Delete the output: nobody needs it."""
        self.log.unlink(missing_ok=True)

    def why(self, job_name: str, master: str, deploy_mode: str) -> SparkNotStarted:
        """The error for a call that has ended before its driver took the job over."""
        text = _last_of(self.log)
        said = _told_lines(text)
        own = [line.removeprefix(REFUSED) for line in said if line.startswith(REFUSED)]
        missing = next((line for line in said if "No module named" in line), None)
        told = in_one_line(redacted((own or [missing or " / ".join(said[-_LINES:]) or "it said nothing"])[-1]))
        where = f"{self.log} has all it said"
        if deploy_mode == CLUSTER:
            place = "the Worker's work/driver-*/stdout"
            if master == YARN:
                yarn = _APPLICATION.search(text)  # which the user's own log4j2.properties may leave out
                place = f"`yarn logs -applicationId {yarn[0] if yarn else 'ID'}`"
            elif master.startswith(KUBERNETES):
                pod = _POD.search(text)
                place = f"`kubectl logs {pod[1] if pod else 'POD'}`"
            where += f", and {place} what the driver said"
        if missing is not None and not own:
            where = f"Install dagster-ckpt and the project for the Python of the driver. {where}"
        elif refused := [words for said_so, words in _REFUSALS if said_so.search(told)]:
            where = f"{refused[0]} {where}"
        elif deploy_mode == CLUSTER and not own:
            where += (
                "; a driver that ends at once there most often has a Python without dagster-ckpt, without the "
                "project, or with another release of pyspark than the cluster"
            )
        return SparkNotStarted(
            f"spark-submit has ended with {self._process.returncode} before the driver took job {job_name!r} over: "
            f"{told[:_LONGEST]}",
            hint=f"Mend it, and launch the job again; nothing was changed. {where}.",
        )


def _forget_old(directory: Path, job: str) -> None:
    """Delete what earlier drivers of a job have put out, except for the latest and for those of living processes."""
    logs = directory.glob(f"{glob.escape(job)}-{'?' * _RUN_ID}.log")
    for log in sorted(logs, key=_changed)[:-_KEPT]:
        with contextlib.suppress(OSError), log.open("rb") as output:
            fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.unlink()


def _changed(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0  # another run has just deleted it


def _last_of(log: Path) -> str:
    try:
        return log.read_bytes()[-100_000:].decode("utf-8", "replace")
    except OSError:
        return ""


def _told_lines(text: str) -> list[str]:
    """The lines that tell something; those that begin with a tab only go on with an exception or with a report."""
    lines = (line.strip() for line in text.splitlines() if not line.startswith("\t"))
    return [
        line
        for line in lines
        if line and (" INFO " not in line or _STATE in line) and not any(noise in line for noise in _NOISE)
    ]
