"""Checkpointed jobs in Airflow: an operator that runs a job, and a trigger that fires for each checkpoint of a job.

Needs Airflow 3.3 or newer. ``dagster_ckpt`` and Spark are not imported: both classes call the command ``dagster-ckpt``
with the Python of the project, so Airflow's own environment stays as it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import NEVER_EXPIRE, BaseOperator, Context, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

__all__ = ["CheckpointTrigger", "CheckpointedJobOperator"]

#: What `dagster-ckpt status` says of a job that a driver holds, and of a job that is over.
_ALIVE = {"STARTING", "RUNNING"}
_OVER = {"FINISHED", "FAILED", "CANCELED"}
#: Exit statuses of `dagster-ckpt run`: the job is over; another run has the job; the call is wrong.
_ENDS = {0: "FINISHED", 5: "FAILED", 6: "CANCELED"}
_TAKEN, _WRONG = 7, 2
#: Of `dagster-ckpt status`: told, and a job needs help.
_TOLD = {0, 5}
#: Of `dagster-ckpt cancel`: no run of the job is alive.
_NOBODY = 9
#: Calls `dagster-ckpt cancel`, and where no run is alive, interrupts the command that would start one.
_CANCEL_OR_INTERRUPT = f'"$@"; status=$?; [ $status -ne {_NOBODY} ] || kill -TERM "$0" || exit 1; exit $status'
#: States of a task instance that Airflow still wants to run, or runs in another process.
_WANTED = {"running", "queued", "scheduled", "up_for_retry"}
#: In the task's state store, while a try does not know how the job ended: the first epoch that belongs to this task,
#: and how often the DAG run had been cleared.
_KEY = "dagster_ckpt"
_TURN = 0.2
#: Seconds for which nothing changes, or nobody can tell how the job is: after them a driver elsewhere is in doubt.
_DOUBT = 120.0
#: Seconds after which a look at a job is given up: a mount of a storage may hang.
_LONGEST_LOOK = 120.0
_PAYLOAD = ("job", "checkpoint", "pointer", "batch", "epoch", "bytes", "new_bytes", "written_at")


def _command(python: str, *arguments: str) -> list[str]:
    return [python, "-m", "dagster_ckpt.cli", *arguments]


class CheckpointedJobOperator(BaseOperator):
    """Runs a job with ``dagster-ckpt run``, and attends the job's driver until the job is over.

    The driver outlives the process of the task. The next try attends a driver that lives, and otherwise starts one,
    which goes on from the newest checkpoint. The task succeeds when the job is FINISHED. A job that is FAILED or
    CANCELED fails the task without another try. Whoever marks the task as failed or as a success, clears it, or lets it
    run into its ``execution_timeout``, cancels the job, whose ``cleanup`` decides on the checkpoints.

    Args:
        target: ``module:name`` of the job's asset or function, for ``dagster-ckpt run``.
        job: the name of the job.
        path: the ``checkpoint_path`` of the job's storage.
        job_resources: ``module:name`` of the resources; by default the storage is that of ``path``.
        options: further arguments of ``dagster-ckpt run``.
        python: the interpreter of the environment that has the project, dagster-ckpt and PySpark.
        cwd: the directory that ``module`` is imported from.
        env: environment variables beside those of the Airflow worker.
        poll_interval: seconds between two looks at a driver that an earlier try has started.
    """

    template_fields: Sequence[str] = ("target", "job", "path", "job_resources", "options", "python", "cwd", "env")

    def __init__(
        self,
        *,
        target: str,
        job: str,
        path: str,
        job_resources: str | None = None,
        options: Sequence[str] = (),
        python: str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        poll_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.job = job
        self.path = path
        self.job_resources = job_resources
        self.options = options
        self.python = python
        self.cwd = cwd
        self.env = env
        self.poll_interval = poll_interval
        self._is_told_to_end = False
        self._command: subprocess.Popen[bytes] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run or attend the job until it is over.

        Returns:
            the job's status, its newest checkpoint and that checkpoint's batch.

        Raises:
            AirflowFailException: the job is FAILED or CANCELED, or the call of ``dagster-ckpt`` is wrong.
            AirflowException: the driver was lost or could not start; the next try goes on.
        """
        store = context["task_state_store"]
        try:
            ended = self._until_over(context)
        except AirflowTaskTimeout:
            if self._cancel() is not None:
                store.delete(_KEY)  # the next try begins anew
            raise
        store.delete(_KEY)
        told = {"status": ended["state"], "checkpoint": ended["checkpoint"], "batch": ended["batch"]}
        if ended["state"] != "FINISHED":
            raise AirflowFailException(f"Job {self.job!r} is {ended['state']}: {ended['reason'] or told}")
        return told

    def on_kill(self) -> None:
        """Called by a signal: the look at why, and the rest, is left to :meth:`execute`, within a turn."""
        self._is_told_to_end = True

    def _until_over(self, context: Context) -> dict[str, Any]:
        """The job's status once it is over: as seen here, or since a try that died."""
        store, times = context["task_state_store"], context["dag_run"].clear_number or 0
        left = store.get(_KEY)
        # A clear cancels the driver and asks for a start, so an end of before says nothing.
        is_cleared = left is not None and left["cleared"] != times
        first = None if left is None or is_cleared else left["epoch"]
        while True:
            job = self._look()
            if job["state"] in _ALIVE:
                # A driver that seemed dead, and for which a start was asked, may live after all.
                first = job["epoch"] if first is None else min(first, job["epoch"])
                store.set(_KEY, {"epoch": first, "cleared": times}, retention=NEVER_EXPIRE)
                job = self._attend(job, context)
            is_ours = first is not None and job["epoch"] >= first and job["state"] in _OVER
            if is_ours and not (is_cleared and job["state"] == "CANCELED"):
                return job
            if job["state"] not in _ALIVE:
                # Kept before the driver starts, so that no death of this process can hide the driver's end.
                first, is_cleared = job["epoch"] + 1, False
                store.set(_KEY, {"epoch": first, "cleared": times}, retention=NEVER_EXPIRE)
            status = self._run(context)
            if status in _ENDS:
                return {**self._look(), "state": _ENDS[status]}
            if status == _WRONG:
                raise AirflowFailException("dagster-ckpt was called wrongly; the log above says how.")
            if status != _TAKEN:
                how = f"was ended by signal {-status}" if status < 0 else f"has ended with {status}"
                raise AirflowException(f"dagster-ckpt run {how}; the next try goes on from the newest checkpoint.")
            if self._look()["state"] not in _ALIVE:
                raise AirflowException(f"Job {self.job!r} is not to be had; the log above says why.")

    def _run(self, context: Context) -> int:
        """Run ``dagster-ckpt run`` until it ends; returns its exit status."""
        given = ("--resources", self.job_resources) if self.job_resources is not None else ("--path", self.path)
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log_file.write_bytes(b"")  # what an earlier try has passed on is in that try's log
        with self._log_file.open("ab") as log:
            self._command = command = subprocess.Popen(
                _command(self.python, "run", self.target, *given, *self.options),
                cwd=self.cwd,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Airflow's signals to the task's processes do not reach it
            )
        with self._log_file.open("rb") as log:
            lines = _lines(log.read)
            while command.poll() is None:
                self._turn(lines, context)
            self._turn(lines, context)
        return command.returncode

    def _attend(self, job: dict[str, Any], context: Context) -> dict[str, Any]:
        """Wait while a driver that another process has started is alive; the job's status then.

        Raises:
            AirflowException: nobody could tell for a while how the job is; the next try looks again.
        """
        self.log.info("The driver of run %s (epoch %s) is alive. This try attends it.", job["run"], job["epoch"])
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log_file.touch()
        with self._log_file.open("rb") as log:
            log.seek(0, os.SEEK_END)
            lines, changed = _lines(log.read), time.monotonic()
            missed: float | None = None
            while job["state"] in _ALIVE:
                due = time.monotonic() + self.poll_interval
                while time.monotonic() < due:
                    self._turn(lines, context)
                before = job
                try:
                    job = self._look(self.job)
                    missed = None
                except AirflowException as error:  # the storage is away, which the driver outlives or not
                    missed = missed or time.monotonic()
                    if time.monotonic() - missed > _DOUBT:
                        raise
                    self.log.warning("%s", error)
                if any(job[key] != before[key] for key in ("state", "epoch", "reason")):
                    changed = time.monotonic()
                elif job["reason"] and time.monotonic() - changed > _DOUBT:
                    # Whether a driver elsewhere beats can be told by those who watch: `dagster-ckpt run` watches, and
                    # refuses to start beside a driver that lives.
                    self.log.info("Nothing has changed for %.0f s: %s", _DOUBT, job["reason"])
                    return job
            return job

    def _turn(self, lines: Iterator[str], context: Context) -> None:
        """Pass on what the driver says, and look whether this process is told to end.

        Raises:
            AirflowFailException: it is, because the task is over for Airflow; the job is canceled.
            AirflowException: it is, and Airflow wants the task; the driver goes on.
        """
        for line in lines:
            if not line:
                break
            self.log.info("%s", line)
        if not self._is_told_to_end:
            time.sleep(_TURN)
            return
        task = context["ti"]
        states = task.get_task_states(
            dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=task.map_index
        )
        state = next(iter(states.get(task.run_id, {}).values()), None)
        if state in _WANTED:
            raise AirflowException("This process is told to end. The driver goes on, and the next try attends it.")
        self.log.info("Airflow calls the task %s: job %r is canceled.", state, self.job)
        how = self._cancel() or "could not be canceled; the log above says why"
        raise AirflowFailException(f"Job {self.job!r} {how}.")

    def _cancel(self) -> str | None:
        """Have the driver cancel the job, in a process that goes on when Airflow kills this one.

        Where no driver has the job yet, or its restart is due, the command of this try is interrupted. A driver that
        could not be asked goes on, and so does its command.

        Returns:
            which of the two was done; ``None`` for neither.
        """
        cancel = _command(self.python, "cancel", self.job, "--path", self.path)
        can_interrupt = self._command is not None and self._command.poll() is None
        if self._command is not None and can_interrupt:
            cancel = ["/bin/sh", "-c", _CANCEL_OR_INTERRUPT, str(self._command.pid), *cancel]
        status = subprocess.Popen(
            cancel, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True
        ).wait()
        if status == 0:
            return "is canceled"
        if status == _NOBODY and can_interrupt:
            return "had no driver, and its command is interrupted: no cleanup has run"
        self.log.error("Job %r is not canceled: dagster-ckpt cancel has ended with %s.", self.job, status)
        return None

    def _look(self, *jobs: str) -> dict[str, Any]:
        """The job's row of ``dagster-ckpt status``; without an argument also for a job that never ran.

        Raises:
            AirflowException: nobody can tell how the job is.
        """
        try:
            looked = subprocess.run(
                _command(self.python, "status", *jobs, "--json", "--path", self.path),
                env=self._environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_LONGEST_LOOK,
            )
        except subprocess.TimeoutExpired as error:
            raise AirflowException(f"dagster-ckpt status: no answer within {_LONGEST_LOOK:.0f} s") from error
        if looked.returncode not in _TOLD:
            raise AirflowException(f"dagster-ckpt status: {looked.stderr.strip()}")
        never = {"state": "NEVER RAN", "epoch": 0, "reason": "", "checkpoint": None, "batch": None, "run": None}
        row: dict[str, Any] = next((row for row in json.loads(looked.stdout) if row["job"] == self.job), never)
        if row["state"] == "UNREADABLE":  # and the epoch is not known
            raise AirflowException(f"Job {self.job!r} is UNREADABLE: {row['reason']}")
        return row

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, **(self.env or {})}

    @property
    def _log_file(self) -> Path:
        return Path(conf.get("logging", "base_log_folder"), "dagster-ckpt", f"{self.job}.log")


def _lines(read: Callable[[], bytes]) -> Iterator[str]:
    """The lines of a growing file; an empty one where there is no more for now."""
    rest = b""
    while True:
        *whole, rest = (rest + read()).split(b"\n")
        for line in whole:
            if text := line.decode(errors="replace").rstrip():
                yield text
        yield ""


class CheckpointTrigger(BaseEventTrigger):
    """Fires once for each completed checkpoint of a job; for an ``AssetWatcher``.

    The event's payload has ``job``, ``checkpoint``, ``pointer``, ``batch``, ``epoch``, ``bytes``, ``new_bytes`` and
    ``written_at``, as ``dagster-ckpt list --json`` tells them.

    What is guaranteed: a checkpoint that a look has shown fires at least once. The asset's state store remembers what
    has fired, so a restart of the triggerer fires nothing again, but for what fired within the last ``poll_interval``
    before a triggerer ended. A checkpoint that was completed and deleted between two looks does not fire. The
    first look fires for every checkpoint that is there.

    A trigger watches for one asset: give a second asset a trigger with another ``poll_interval``.

    Args:
        job: the name of the job.
        path: the ``checkpoint_path`` of the job's storage.
        python: the interpreter of an environment that has dagster-ckpt.
        poll_interval: seconds between two looks.
    """

    def __init__(self, *, job: str, path: str, python: str, poll_interval: float = 30.0) -> None:
        super().__init__()
        self.job = job
        self.path = path
        self.python = python
        self.poll_interval = poll_interval
        self._said = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        given = {"job": self.job, "path": self.path, "python": self.python, "poll_interval": self.poll_interval}
        return f"{type(self).__module__}.{type(self).__name__}", given

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look again and again.

        Raises:
            RuntimeError: this Airflow hands no state store of the asset to its triggers.
        """
        store = self.asset_state_store
        if store is None:
            raise RuntimeError("CheckpointTrigger needs the state store of a watched asset: Airflow 3.3 or newer.")
        fired = remembered = await store.aget(_KEY, [])
        while True:
            rows = await self._list()
            if rows is not None:
                # Remembered one look after it fired: by then the event is in Airflow's database.
                if fired != remembered:
                    await store.aset(_KEY, fired)
                    remembered = fired
                complete = [row for row in rows if row["pointer"] is not None]
                for row in complete:
                    if row["checkpoint"] not in fired:
                        yield TriggerEvent({key: row[key] for key in _PAYLOAD})
                fired = [row["checkpoint"] for row in complete]
            await asyncio.sleep(self.poll_interval)

    async def _list(self) -> list[dict[str, Any]] | None:
        """The job's checkpoints, ``None`` while nobody can tell: the job never ran, or the storage is away."""
        looked = await asyncio.create_subprocess_exec(
            *_command(self.python, "list", self.job, "--json", "--path", self.path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, words = await looked.communicate()
        if looked.returncode:
            said = words.decode(errors="replace").strip()
            if said != self._said:
                self.log.warning("dagster-ckpt list: %s", said)
            self._said = said
            return None
        rows: list[dict[str, Any]] = json.loads(out)
        return rows
