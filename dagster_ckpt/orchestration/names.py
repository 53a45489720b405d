"""Names on Dagster's side: tags, metadata keys, partition keys. One place, because other tools read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_ckpt.checkpoint import CheckpointMetadata

if TYPE_CHECKING:
    import dagster as dg

__all__ = [
    "ASKED_BY_TAG",
    "ASKING_TAG",
    "ATTEMPT_TAG",
    "ATTENDS_TAG",
    "BEGUN",
    "CODE_TAG",
    "DETECTED_AT_TAG",
    "DONE",
    "FAILED",
    "FAILED_AT_TAG",
    "JOB_ID_TAG",
    "JOB_TAG",
    "LEFT_OUT",
    "PARENT_RUN_TAG",
    "REHEARSAL_TAG",
    "RESTORED_FROM_TAG",
    "RESTORE_TAG",
    "RESUMES_TAG",
    "ROLLBACK_OF_TAG",
    "ROLLBACK_TAG",
    "ROLLBACK_TO_TAG",
    "ROOT_RUN_TAG",
    "RUN_KEY_TAG",
    "SERIES_TAG",
    "STANDBY_OF_TAG",
    "UNWANTED_TAG",
    "VERDICT_TAG",
    "attends",
    "checkpoint_job",
    "is_resume",
    "is_resumed",
    "of_stream",
    "of_user",
    "partition_key",
    "rollback_job",
    "standby_job",
    "stands_by",
    "stream_job",
]

JOB_TAG = "dagster_ckpt/job"
JOB_ID_TAG = "dagster_ckpt/job_id"
ATTEMPT_TAG = "dagster_ckpt/attempt"
SERIES_TAG = "dagster_ckpt/series"
RESTORED_FROM_TAG = "dagster_ckpt/restored_from"
#: Of a run that attends a living driver: the run that the driver was submitted for.
ATTENDS_TAG = "dagster_ckpt/attends"
RESUMES_TAG = "dagster_ckpt/resumes"
FAILED_AT_TAG = "dagster_ckpt/failed_at"
DETECTED_AT_TAG = "dagster_ckpt/detected_at"
#: Of a run of the rollback job: the job that goes back, where to, whether it waits for a run, its own id while it
#: asks for one, and the verdict.
ROLLBACK_OF_TAG = "dagster_ckpt/rollback_of"
ROLLBACK_TO_TAG = "dagster_ckpt/rollback_to"
ROLLBACK_TAG = "dagster_ckpt/rollback"
ASKING_TAG = "dagster_ckpt/asking"
VERDICT_TAG = "dagster_ckpt/verdict"
#: Of a run of the rollback job: the call of `dagster-ckpt restore` that asked for it.
RESTORE_TAG = "dagster_ckpt/restore"
#: Of a run of the job: the run of the rollback job that asked for it.
ASKED_BY_TAG = "dagster_ckpt/asked_by"
#: Of a run that waits beside a job to take it over: the job, and the code that the run has loaded. It gets JOB_TAG and
#: the tags of a resumed run when it takes the job over.
STANDBY_OF_TAG = "dagster_ckpt/standby_of"
CODE_TAG = "dagster_ckpt/code"
#: A standby that the sensor has told to end.
UNWANTED_TAG = "dagster_ckpt/unwanted"
#: Of such a run: how far its rehearsal is, or that there is none because the run before has died during one.
REHEARSAL_TAG = "dagster_ckpt/rehearsal"
BEGUN, DONE, FAILED, LEFT_OUT = "begun", "done", "failed", "left out"
PARENT_RUN_TAG = "dagster/parent_run_id"
ROOT_RUN_TAG = "dagster/root_run_id"
RUN_KEY_TAG = "dagster/run_key"
#: Tags of Dagster's and of this library's that tell what one run is, where it came from, or how it went.
_OF_THE_RUN = ("dagster/", ".dagster/", "dagster_ckpt/")
MAX_RETRIES_TAG = "dagster/max_retries"
#: The run key of a resume: the job, the claim that it continues, and the number of failures.
_RESUME_KEY = re.compile(r".+:[0-9a-f]{12}:[0-9]+")
#: Two names of one limit; Dagster reads the first one first.
MAX_RUNTIME_TAGS = ("dagster/max_runtime", "dagster/max_runtime_seconds")
_NO_LIMIT = "0"
_ASKED = frozenset({"dagster/priority", "dagster/concurrency_key", *MAX_RUNTIME_TAGS})


def of_user(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags of a run that say what its user wanted, for a run that continues it."""
    asked = {key: value for key, value in tags.items() if key in _ASKED or not key.startswith(_OF_THE_RUN)}
    # No limit is what :func:`of_stream` sets: the job may have got one since.
    return {key: value for key, value in asked.items() if (key, value) != (MAX_RUNTIME_TAGS[0], _NO_LIMIT)}


def of_stream(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags ``tags`` of a run with a stream, which Dagster neither retries nor ends because it runs for long.

    Dagster's retries know neither the restart strategy nor its budget. At the limit of ``run_monitoring`` a run looks
    canceled, though nobody wants its job to end; a limit in the tags is its user's.
    """
    read, other = (tags.get(tag, _NO_LIMIT) for tag in MAX_RUNTIME_TAGS)
    return {**tags, MAX_RUNTIME_TAGS[0]: other if read == _NO_LIMIT else read, MAX_RETRIES_TAG: "0"}


def is_resume(tags: Mapping[str, str]) -> bool:
    """Whether the sensor launched the run to continue its parent; Dagster copies a run's tags to its re-executions."""
    return RESUMES_TAG in tags and tags[RESUMES_TAG] == tags.get(PARENT_RUN_TAG)


def is_resumed(run: dg.DagsterRun, instance: dg.DagsterInstance) -> bool:
    """Whether the sensor launched a run to continue its parent: :func:`is_resume`, or the sensor of release 0.1.0 did.

    That release set no tag of its own. A re-execution has all tags of its parent, and so the run key of its parent.
    """
    key, parent = run.tags.get(RUN_KEY_TAG, ""), run.tags.get(PARENT_RUN_TAG)
    is_older = _RESUME_KEY.fullmatch(key) and {ATTEMPT_TAG, SERIES_TAG} <= run.tags.keys()
    if not is_older or parent is None or RESUMES_TAG in run.tags:
        return is_resume(run.tags)
    before = instance.get_run_by_id(parent)
    return before is None or before.tags.get(RUN_KEY_TAG) != key


def attends(tags: Mapping[str, str]) -> str | None:
    """The run whose living driver the sensor launched this run to attend; a re-execution attends nothing."""
    driver = tags.get(ATTENDS_TAG)
    return driver if driver is not None and driver == tags.get(PARENT_RUN_TAG) else None


def partition_key(metadata: CheckpointMetadata) -> str:
    """``{first 8 of the job id}.chk-N``: chk-N alone would repeat after a start without a checkpoint."""
    return partition_of(metadata.job_id, metadata.name)


def partition_of(job_id: str, name: str) -> str:
    """The partition key of a checkpoint whose manifest cannot be read."""
    return f"{job_id[:8]}.{name}"


def checkpoint_job(job: str) -> str:
    """The name of the Dagster job that has a checkpointed job take a checkpoint at once."""
    return f"{job}_checkpoint"


def rollback_job(job: str) -> str:
    """The name of the Dagster job that takes a checkpointed job back to a checkpoint."""
    return f"{job}_rollback"


def stream_job(job: str) -> str:
    """The name of the Dagster job that materializes the output asset of a checkpointed job."""
    return f"{job}_job"


def stands_by(tags: Mapping[str, str]) -> bool:
    """Whether a run waits to take a job over; one that has done so, or re-executes such a run, is a run of the job."""
    return STANDBY_OF_TAG in tags and JOB_TAG not in tags


def standby_job(job: str) -> str:
    """The name of the Dagster job whose runs wait beside a checkpointed job, to take it over."""
    return f"{job}_standby"
