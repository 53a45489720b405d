"""Drivers of one job in child processes, one after another: when a driver is lost, the next one resumes the job.

The parent only waits: it loads neither Spark nor Dagster nor the user's code, so nothing that ends a driver ends the
parent. A driver decides by the storage's records whether and when it may resume the job, and ends with its parent.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dagster_ckpt.checkpoint import belongs_to_another
from dagster_ckpt.cli.printing import drop_unprinted, say, say_json, warn
from dagster_ckpt.config import LATEST, JobStatus, load_object
from dagster_ckpt.errors import CheckpointError, InvalidConfiguration
from dagster_ckpt.spark import EpochClaimed, Event, Started, die_with_parent
from dagster_ckpt.standalone import Launch, ToldToEnd, told_to_end

if TYPE_CHECKING:
    from dagster_ckpt.standalone import Drive

__all__ = ["CANCELED", "ERROR", "FAILED", "FINISHED", "INTERRUPTED", "TAKEN", "Order", "keep_running"]

FINISHED, ERROR, FAILED, CANCELED, TAKEN = 0, 1, 5, 6, 7
_WORDS = {FINISHED: "FINISHED", ERROR: "ERROR", FAILED: "FAILED", CANCELED: "CANCELED", TAKEN: "TAKEN"}
#: Of a driver only: its job is not over, and the next driver may go on.
_AGAIN = 8
#: Plus the number of the signal.
INTERRUPTED = 128
#: Drivers in a row that ended before they could decide about the job: the storage is away, or the code is broken.
_TRIES = 10
#: Seconds before the first of these tries, doubled for each, and the most.
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_TURN = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run, in what can be sent to another process.

    Attributes:
        target: import path of the asset or function.
        arguments: further arguments of :meth:`Drive.of`; ``storage`` and ``spark`` are arguments of their resources.
        resources: import path of resources or definitions, ``None`` for none.
    """

    target: str
    arguments: Mapping[str, Any]
    resources: str | None = None

    def drive(self, run_id: str, earlier: tuple[Launch, ...]) -> Drive:
        """What to drive, in this process.

        Raises:
            InvalidConfiguration: something named cannot be imported or used.
        """
        from dagster_ckpt.orchestration import (  # noqa: PLC0415 - Dagster, for drivers only
            FileSystemCheckpointStorage,
            SparkSessionResource,
        )
        from dagster_ckpt.standalone import Drive  # noqa: PLC0415 - the same

        given = dict(self.arguments)
        for key, resource in (("storage", FileSystemCheckpointStorage), ("spark", SparkSessionResource)):
            if given.get(key) is not None:
                given[key] = resource(**given[key])
        if self.resources is not None:
            given["resources"] = load_object(self.resources, "the resources")
        query = load_object(self.target, "what is to be run")
        if not callable(query):
            raise InvalidConfiguration(
                f"{self.target} is {type(query).__name__}, and not a function or a checkpointed streaming asset.",
                hint="Name the function that returns the query, or the asset that was made of it.",
            )
        return replace(Drive.of(query, **given), run_id=run_id, earlier=earlier)

    def continued(self) -> Order:
        """The order for the drivers after one that has begun: they go on from the newest checkpoint."""
        once = dict.fromkeys(
            ("claim_mode", "replay_to", "fork_from", "state_partitions", "start_sources", "code_version")
        )
        asked = {"restore_from": LATEST, "allow_loss": False, **once}
        return replace(self, arguments={**self.arguments, **asked})


def keep_running(order: Order, *, as_json: bool = False) -> int:
    """Start a driver, and the next one whenever the job is to be resumed; returns the exit status of the command.

    Args:
        order: what is to be run.
        as_json: print how the job stands at the end as JSON, instead of a line.
    """
    parent = _Parent()
    try:
        with parent:
            status = parent.run(order)
        told = {"status": _WORDS.get(status, "INTERRUPTED"), **parent.outcome, "exit_status": status}
        if as_json:
            _print(told, show=say_json)
        elif status in {FINISHED, CANCELED}:
            newest = "" if told["newest"] is None else f", newest checkpoint {told['newest']}"
            _print(f"{told['job']}: {told['status']}{newest}", show=say)
        return status
    finally:
        drop_unprinted()


def _print(line: Any, *, show: Callable[..., None] = warn, **how: Any) -> None:
    """Print a line where that is possible: a job does not fail because nobody can read about it.

    The disk of a log may be full, the reader of a pipe gone, the terminal closed; and a signal may have come while
    another line was being printed.
    """
    with suppress(OSError, ValueError, RuntimeError):
        show(line, **how)


class _Parent:
    """Hands the first signal that tells it to end on to the driver; a second Ctrl-C kills the driver.

    No other signal kills: the shell and the kernel send a SIGHUP each when a terminal is closed.
    """

    def __init__(self) -> None:
        #: What the last driver that could tell has told of the job's end.
        self.outcome: dict[str, Any] = {"job": None, "newest": None, "reason": "", "hint": ""}
        self._child: BaseProcess | None = None
        self._number: int | None = None
        self._is_ctrl_c = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
        self._before = {number: signal.signal(number, self._told) for number in heard}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, order: Order) -> int:
        earlier: tuple[Launch, ...] = ()
        tries = 0
        while True:
            run_id = uuid.uuid4().hex
            status, how, told = self._one(order, run_id, earlier)
            if self._number is None and status in {None, _AGAIN}:
                if not told and (not earlier or (tries := tries + 1) == _TRIES):
                    _print(f"The driver {how} before it took the job over. The job is as it was.", color="red")
                    return ERROR
                _print(f"The driver of run {run_id} {how}; the next one resumes the job.", color="yellow")
                if told:
                    tries, begun = 0, "started" in told
                    earlier = (*(() if begun else earlier), Launch(run_id, time.time()))
                    order = order.continued() if begun else order
                else:
                    self._wait(min(_PAUSE * 2 ** (tries - 1), _LONGEST_PAUSE))
            elif status is not None and (self._number is None or status in {FINISHED, FAILED, CANCELED}):
                return status
            if self._number is not None:
                return INTERRUPTED + self._number

    def _wait(self, seconds: float) -> None:
        """Wait, or until a signal tells this process to end."""
        until = time.monotonic() + seconds
        while self._number is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _TURN))

    def _one(self, order: Order, run_id: str, earlier: tuple[Launch, ...]) -> tuple[int | None, str, set[str]]:
        """One driver: the status that it told, how it ended, and what else it told.

        Without a status the driver is lost, whatever the exit status of its process: anything that the driver has
        loaded can end the process. What else it tells: that it may go on, has claimed the job, has started it.
        """
        try:
            child, heard = _started(order, run_id, earlier)
        except OSError as error:  # no room for one more process or file, which may pass
            return None, f"could not be started ({error.strerror or error})", set()
        self._child = child
        if self._number is not None:
            child.terminate()
        status, told = None, set()
        # A process that a lost driver has forked may live, and hold the other end of the pipe open.
        with heard, suppress(EOFError, OSError):
            while child.exitcode is None or heard.poll():
                if heard.poll(_TURN):
                    word = heard.recv()
                    if isinstance(word, tuple):
                        status, self.outcome = word
                    else:
                        told.add(word)
        child.join()
        self._child = None
        code = child.exitcode or 0
        silently = f"has ended with status {code}" if code and status is None else "has ended"
        return status, f"was ended by signal {-code}" if code < 0 else silently, told

    def _told(self, number: int, frame: FrameType | None) -> None:
        del frame
        first, again = self._number is None, number == signal.SIGINT and self._is_ctrl_c
        self._number, self._is_ctrl_c = self._number or number, self._is_ctrl_c or number == signal.SIGINT
        if self._child is None:
            return
        if again:
            self._child.kill()
        elif first:
            self._child.terminate()
            _print("The job is interrupted and goes on with its next run. A second Ctrl-C kills its driver at once.")


def _started(order: Order, run_id: str, earlier: tuple[Launch, ...]) -> tuple[BaseProcess, Connection]:
    """A driver's process, and what the driver is heard by.

    Raises:
        OSError: the host has no room for one more.
    """
    context = multiprocessing.get_context("spawn")
    heard, telling = context.Pipe(duplex=False)
    child = context.Process(target=_drive, args=(order, run_id, earlier, telling), name="dagster-ckpt-driver")
    try:
        with telling:
            child.start()
    except BaseException:
        heard.close()
        raise
    return child, heard


class _Terminal(logging.Handler):
    """Prints log records as the command prints everything: in one line, and never a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        record.exc_info = record.exc_text = None
        try:
            line = self.format(record)
        except Exception as unfit:  # arguments that do not fit the message
            line = f"{record.levelname} {record.msg} ({type(unfit).__name__}: {unfit})"
        _print(line + (f" ({type(error).__name__}: {error})" if error is not None else ""))


def _drive(order: Order, run_id: str, earlier: tuple[Launch, ...], telling: Connection) -> None:
    """What the child process does."""
    os.setpgid(0, 0)  # Ctrl-C in a terminal reaches every process of a group, and Spark's must not be ended by it
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's word, also where the caller has SIGTERM ignored
    terminal = _Terminal()
    terminal.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[terminal])
    logging.getLogger("dagster_ckpt").setLevel(logging.INFO)
    driver = os.getpid()
    with told_to_end(signal.SIGINT):  # which systemd may send to every process
        try:
            status, outcome = _status_of(order, run_id, earlier, telling)
            if os.getpid() == driver:  # and not a process that the job's code has forked
                telling.send((status, outcome))
            sys.exit(status)
        finally:
            drop_unprinted()


def _status_of(
    order: Order, run_id: str, earlier: tuple[Launch, ...], telling: Connection
) -> tuple[int, dict[str, Any]]:
    """The exit status, and how the job stands: its name, its newest checkpoint, what went wrong, what to do."""
    drive: Drive | None = None
    told = set()
    outcome: dict[str, Any] = {"job": None, "newest": None, "reason": "", "hint": ""}

    def tell(word: str) -> None:
        told.add(word)
        telling.send(word)

    def on_event(event: Event) -> None:
        if isinstance(event, EpochClaimed | Started):
            tell("claimed" if isinstance(event, EpochClaimed) else "started")

    try:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        drive = order.drive(run_id, earlier)
        # What a user has started and what has not claimed the job is no part of it yet: nothing is to be resumed.
        result = replace(drive, on_event=on_event, on_resume=lambda: tell("resumes") if earlier else None).run()
    except ToldToEnd:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # sys.exit() in the job's code does not end the job
        failure = error if isinstance(error, CheckpointError) else raised_by_users_code(order.target, error)
        _print(failure.message, color="red")
        if failure.hint:
            _print(failure.hint)
        outcome |= {"job": drive and drive.asset.name, "reason": failure.message, "hint": failure.hint}
        if belongs_to_another(error):
            return TAKEN, outcome
        if drive is not None and drive.has_failed(error):
            return FAILED, outcome
        return _AGAIN if told or earlier else ERROR, outcome
    outcome |= {"job": drive.asset.name, "newest": None if result.newest is None else result.newest.reference}
    return FINISHED if result.status is JobStatus.FINISHED else CANCELED, outcome


def raised_by_users_code(target: str, error: BaseException) -> CheckpointError:
    """The error for what the code of a job has raised, outside its query."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames and not isinstance(error, SyntaxError) else ""
    return CheckpointError(
        f"{type(error).__name__}: {error}{where}",
        hint=f"Mend the code, and call `dagster-ckpt run` again. If the import raises it, `python -c 'import "
        f"{target.partition(':')[0]}'` shows the whole traceback.",
    )
