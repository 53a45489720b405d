"""The driver that a Dagster run has submitted: ``python -m dagster_ckpt.standalone.submitted DEFINITIONS JOB RUN_ID``.

``spark-submit`` starts it, here or on a host of the cluster. It loads the definitions, takes its order from the storage
(:mod:`dagster_ckpt.checkpoint.submissions`), and drives the job as ``dagster-ckpt run`` does. All that it has to say
goes into the job's records, where the Dagster run reads it; only an error before the claim goes to the log alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any

import dagster as dg

from dagster_ckpt.checkpoint import JobRecords
from dagster_ckpt.config import load_object
from dagster_ckpt.errors import CheckpointError, InvalidConfiguration
from dagster_ckpt.orchestration import REFUSED, SparkSubmitResource
from dagster_ckpt.shown_text import redacted
from dagster_ckpt.spark import die_with_parent, live_below_jvm
from dagster_ckpt.standalone.job_drive import Drive
from dagster_ckpt.standalone.project import find_asset, loaded
from dagster_ckpt.standalone.signals import told_to_end

__all__ = ["main", "submitted_drive"]


def main(arguments: Sequence[str]) -> int:
    """Drive a submitted job to its end.

    Args:
        arguments: import path of the definitions, name of the job, id of the run.

    Returns:
        the exit status: 0 for a job that is over, 1 for a driver that has failed.
    """
    # The JVM is above this process, and nothing can be done without the JVM.
    die_with_parent()
    definitions, job_name, run_id = arguments
    try:
        live_below_jvm()
        with _logging(), told_to_end(signal.SIGINT):
            submitted_drive(load_object(definitions, "the definitions"), definitions, job_name, run_id).run()
    except Exception as error:  # told in one line that the Dagster run can find in the log
        message, hint = (error.message, error.hint) if isinstance(error, CheckpointError) else (str(error), "")
        sys.stderr.write(f"\n{REFUSED}{type(error).__name__}: {redacted(' '.join(f'{message} {hint}'.split()))}\n")
        return 1
    return 0


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Log from a thread of its own: a JVM that is paused reads nothing of this process, and a heartbeat must not wait.

    The JVM above this process passes on what this process says.
    """
    lines: SimpleQueue[logging.LogRecord] = SimpleQueue()
    words = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=words, handlers=[QueueHandler(lines)])
    logging.getLogger("dagster_ckpt").setLevel(logging.INFO)
    listener = QueueListener(lines, logging.StreamHandler())
    listener.start()
    try:
        yield
    finally:
        listener.stop()


def submitted_drive(definitions: Any, path: str, job_name: str, run_id: str) -> Drive:
    """The drive of a submitted run.

    Args:
        definitions: that have the asset and its resources, or the function that makes them.
        path: the import path of the definitions.
        job_name: of the job.
        run_id: of the run that has submitted this driver.

    Raises:
        InvalidConfiguration: the definitions lack the asset, or Spark is no :class:`SparkSubmitResource` in them.
        Fenced: the run has withdrawn its submission, or a later run has submitted a driver.
    """
    definitions = loaded(definitions)
    asset = find_asset(definitions, path, job_name)
    drive = Drive.of(asset, resources=definitions)
    spark = drive.resources[asset.spark_key]
    if not isinstance(spark, SparkSubmitResource):
        raise InvalidConfiguration(
            f"The resource {asset.spark_key!r} of {path} is {type(spark).__name__}, and no SparkSubmitResource.",
            hint="Deploy the definitions of the Dagster code location also where the driver runs.",
        )
    with dg.build_asset_context(resources={asset.storage_key: drive.resources[asset.storage_key]}) as context:
        storage = getattr(context.resources, asset.storage_key).filesystem()
    submission = JobRecords(storage, job_name).submissions.check(run_id)
    return replace(
        drive,
        resources={**drive.resources, asset.spark_key: spark.in_driver()},
        op_config=json.loads(submission.op_config),
        run_id=run_id,
        submission=submission,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
