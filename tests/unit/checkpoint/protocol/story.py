"""A job with a past, and with a record of every kind."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.deletion_log import DeletionLog
from dagster_ckpt.checkpoint.control.epochs import Epochs, Settled
from dagster_ckpt.checkpoint.control.failures import Failure, FailureLog
from dagster_ckpt.checkpoint.control.heartbeat import Completed, Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchiveWriter, PlannedBatch
from dagster_ckpt.checkpoint.control.quarantine import Quarantine, Quarantined
from dagster_ckpt.checkpoint.control.savepoint_requests import (
    Answer,
    CancelRequest,
    SavepointRequest,
    SavepointRequests,
    TakenSavepoint,
)
from dagster_ckpt.checkpoint.control.taken_savepoints import NamedSavepoint, RecordedSavepoint, RecordedSavepoints
from dagster_ckpt.checkpoint.format.layout import reserve_path
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.standbys import Standbys
from dagster_ckpt.checkpoint.start_traces import MONOTONIC, StartTrace, Step
from dagster_ckpt.checkpoint.submissions import Submission
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, pin, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.submitting import submitted

CONTROL = f"{JOB}/control/"
LINEAGE = f"{1:032x}"
STEP = Step("session", 0.0, 4.0, MONOTONIC)
SAVEPOINT = "/savepoints/savepoint-000000-000000000000"


@dataclass(frozen=True)
class Story:
    """A job with a past.

    Attributes:
        storage: what it has stored.
        ledger: what it was promised.
        newest: the checkpoint that it goes on from.
    """

    storage: MemoryFileSystem
    ledger: Ledger
    newest: str

    def records(self) -> list[str]:
        """The paths of the job's records, without batch plans, and without the reserve, which says nothing."""
        records = (name for name in self.storage.files if name.startswith(CONTROL) and "/wal/" not in name)
        return sorted(name for name in records if name != reserve_path(JOB))


def told(pins: Pins) -> Story:
    """Three starts, the second after a rollback, and a record of every kind."""
    memory, ledger = MemoryFileSystem(), Ledger()
    JobRecords(memory, JOB).claim_ownership("dagster")
    first = Run(memory, ledger, pins).start()
    for step in range(3):
        first.checkpoint(state(step), step)
    pin(memory, ledger, f"{LINEAGE}/chk-1")
    first.finish("FAILING")
    second = Run(memory, ledger, pins).start(f"{LINEAGE}/chk-2")
    for step in range(2, 5):
        second.checkpoint(state(step), step)
    FailureLog(memory, JOB).record(1, Failure("run", 1, 1.0, 4, "it broke"))
    Quarantine(memory, JOB).add(Quarantined(f"{LINEAGE}/chk-3", "a bit", 2, "run", "h", "2026-11-23T10:00:00+00:00"))
    third = Run(memory, ledger, pins).start()
    for step in range(5, 8):
        newest = third.checkpoint(state(step), step)
    third.subsume(4)
    process, known = ProcessIdentity("h", 1, 1.0), Completed(newest.reference, 3)
    HeartbeatFile(memory, JOB).write(Heartbeat(3, "run", (process,), 4, 1.0, stopped=True, completed=known))
    requests, token = SavepointRequests(memory, JOB), f"{7:032x}"
    requests.ask(SavepointRequest(token, "/savepoints", stop=False, asked_at=1.0, until=2.0))
    requests.answer(3, next(iter(requests.open())), Answer(1.0, TakenSavepoint(SAVEPOINT, 9, 7, 1, 1, 0.5)))
    requests.ask(waiting := SavepointRequest(f"{8:032x}", None, stop=False, asked_at=1.0, until=2.0))
    requests.begin(3, waiting, 1.5)
    requests.ask_to_cancel(CancelRequest("run", 1.0))
    RecordedSavepoints(memory, JOB).add(RecordedSavepoint(LINEAGE, 2, 5, None, SAVEPOINT))
    named = NamedSavepoint("before-2.0", SAVEPOINT, "a note", None, LINEAGE, 2, 5, "2026-11-23T10:00:00+00:00")
    RecordedSavepoints(memory, JOB).give(named, over=None)
    deletions = DeletionLog(memory, JOB)
    deletions.ask(3, LINEAGE, [6], [], "somebody asked for it")
    (deletion,) = deletions.pending()
    deletions._decided(deletion, ())
    ledger.given_up.add(f"{LINEAGE}/chk-6")
    third.finish()
    Epochs(memory, JOB).record_settled(3, Settled({LINEAGE: CheckpointCatalog(memory, JOB).completed_ids(LINEAGE)}))
    JobRecords(memory, JOB).starts.add(StartTrace(3, "run", "2026-11-23T10:00:00+00:00", True, (STEP,)))
    submission = submitted(JobRecords(memory, JOB), Submission("run", 2, None, "{}", 1.0))
    JobRecords(memory, JOB).submissions.take(submission, 3)
    JobRecords(memory, JOB).messages(submission.number).add(['{"method": "opened", "params": {}}'])
    JobRecords(memory, JOB).attendant.write(Heartbeat(3, "run", (process,), 4, 1.0, stopped=True))
    HeartbeatFile(memory, JOB, "silent").write(Heartbeat(2, "run", (process,), 4, 1.0))
    Standbys(memory, JOB).write(Heartbeat(3, "standby", (process,), 4, 1.0))
    plans = PlanArchiveWriter(memory, JOB, LINEAGE, 3, lambda: None)
    plans.begin(-1, None, [])
    plans.append([PlannedBatch(0, {"offsets/0": "v1"})])
    ledger.examine(memory)
    return Story(memory, ledger, newest.reference)
