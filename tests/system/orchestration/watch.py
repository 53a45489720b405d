"""A checkpointed job under a real ``dagster dev``, watched from outside: its storage, its processes, its runs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TypeVar

import dagster as dg

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.checkpoint.control.epochs import Choice
from dagster_ckpt.checkpoint.control.failures import Failure, FailureLog
from dagster_ckpt.checkpoint.control.heartbeat import Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.orchestration import names
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.testing.dagster_dev import DagsterDev, wait_for
from tests.system.orchestration.pipeline import ROOT_VARIABLE, Pipeline

_T = TypeVar("_T")
_FINISHED = ("SUCCESS", "FAILURE", "CANCELED")
_TICKS = """
query($sensor: SensorSelector!) {
  sensorOrError(sensorSelector: $sensor) {
    ... on Sensor { sensorState { ticks(limit: 20) { status skipReason error { message } } } }
  }
}"""
_RELOAD = """
mutation($location: String!) {
  reloadRepositoryLocation(repositoryLocationName: $location) { __typename }
}"""
WORKSPACE = Path(__file__).with_name("location") / "workspace.yaml"
#: Far more than any step takes on an idle machine.
PATIENCE = 600.0


def dagster_dev(root: Path, home: Path, postgres_url: str = "") -> DagsterDev:
    """A Dagster on the test location, not started yet, whose pipelines lie below ``root``.

    Args:
        root: of the pipelines.
        home: of the instance.
        postgres_url: the database of the instance; by default SQLite.
    """
    settings = {"storage": {"postgres": {"postgres_url": postgres_url}}} if postgres_url else {}
    return DagsterDev(WORKSPACE, home, {ROOT_VARIABLE: str(root), "SPARK_LOCAL_IP": "127.0.0.1"}, settings)


class JobWatch:
    """One pipeline and its job.

    Args:
        dev: Dagster.
        pipeline: the pipeline of the same name.
    """

    def __init__(self, dev: DagsterDev, pipeline: Pipeline) -> None:
        self.dev = dev
        self.pipeline = pipeline
        self.name = pipeline.name
        self.catalog = CheckpointCatalog(open_filesystem(str(pipeline.checkpoint_path)), self.name)
        self._heartbeats = HeartbeatFile(self.catalog.filesystem, self.name)

    def launch(self, restore_from: str | None = None, configuration: Mapping[str, str] | None = None) -> str:
        """Launch the job as the launchpad does; returns the run's id."""
        given = {"restore_from": restore_from, "configuration": configuration}
        config = {name: value for name, value in given.items() if value is not None}
        return self.dev.launch(f"{self.name}_job", config={"ops": {self.name: {"config": config}}} if config else {})

    def reload(self) -> None:
        """Let Dagster load the code anew, as after a deployment."""
        location = self.dev._repository["repositoryLocationName"]
        answer = self.dev.graphql(_RELOAD, {"location": location})["reloadRepositoryLocation"]
        assert answer["__typename"] == "WorkspaceLocationEntry", answer

    def materialize(self) -> str:
        """Materialize the asset as a click in the asset graph does: no job's tags, the multiprocess executor."""
        return self.dev.launch("__ASSET_JOB", assets=[[self.name]])

    def completed(self) -> list[CheckpointMetadata]:
        """The retained checkpoints of the job's lineage, the newest last."""
        chosen = self.catalog.choice()
        return [] if chosen is None else self.catalog.completed(chosen[1].job_id)[0]

    def choice(self) -> Choice:
        chosen = self.catalog.choice()
        assert chosen is not None
        return chosen[1]

    def epoch(self) -> int:
        return self.catalog.records.epochs.highest()

    def location(self) -> CheckpointLocation:
        return CheckpointLocation(Path(self.choice().live))

    def heartbeat(self) -> Heartbeat:
        heartbeat = self._heartbeats.read()
        assert heartbeat is not None
        return heartbeat

    def failures(self) -> list[Failure]:
        """The failures on record in the series of the newest start."""
        claim = self.catalog.records.epochs.read_claim(self.epoch())
        assert claim is not None
        return FailureLog(self.catalog.filesystem, self.name).of(claim.series)

    def wait_checkpoints(self, run_id: str, count: int) -> list[CheckpointMetadata]:
        """Wait until ``run_id`` has completed ``count`` checkpoints that are still retained."""

        def ask() -> list[CheckpointMetadata] | None:
            mine = [item for item in self.completed() if item.writer["run_id"] == run_id]
            return mine if len(mine) >= count else None

        return self._wait_while_running(run_id, ask, f"{count} checkpoints of run {run_id}")

    def wait_checkpoint_of(self, run_id: str, batch: int) -> CheckpointMetadata:
        """Wait until the newest checkpoint is of that batch, and taken by ``run_id``."""

        def ask() -> CheckpointMetadata | None:
            mine = [item for item in self.completed() if item.writer["run_id"] == run_id]
            return mine[-1] if mine and mine[-1].batch == batch else None

        return self._wait_while_running(run_id, ask, f"a checkpoint of batch {batch} by run {run_id}")

    def hold_mid_batch(self, run_id: str) -> None:
        """Wait until all is read, land one more file, and wait until its batch is planned and held."""
        self.wait_caught_up(run_id)
        self.pipeline.hold_from(self.pipeline.landed())
        self.pipeline.land(1)
        self.wait_in_flight(run_id)

    def wait_in_flight(self, run_id: str) -> None:
        """Wait until a batch of ``run_id`` is planned and not committed."""
        self._wait_while_running(
            run_id, lambda: self._chose(run_id) and self.location().planned() is not None, "a batch in flight"
        )

    def wait_committed(self, run_id: str, batch: int) -> None:
        """Wait until ``run_id`` has committed ``batch``."""
        self._wait_while_running(
            run_id, lambda: self._chose(run_id) and self.location().last_committed() == batch, f"batch {batch}"
        )

    def _chose(self, run_id: str) -> bool:
        """Whether the newest epoch is the run's, and what it began with is on record."""
        epoch = self.epoch()
        claim = self.catalog.records.epochs.read_claim(epoch)
        return (
            claim is not None and claim.run_id == run_id and self.catalog.records.epochs.read_choice(epoch) is not None
        )

    def wait_caught_up(self, run_id: str) -> None:
        """Wait until all that has landed is in the output, and covered by a checkpoint."""

        def ask() -> bool:
            completed = self.completed()
            # A batch is in the output a moment before it is committed, and a batch is a file here.
            return (
                bool(completed)
                and completed[-1].batch == self.pipeline.landed() - 1
                and self.pipeline.committed() == self.pipeline.expected()
            )

        self._wait_while_running(run_id, ask, "the output to hold all that has landed")

    def wait_reported(self, run_id: str) -> None:
        """Wait until Dagster shows a checkpoint of the job: only then does it tell why the checkpoint goes."""

        def ask() -> bool:
            with self.dev.instance() as instance:
                return bool(instance.get_dynamic_partitions(f"{self.name}_checkpoints"))

        self._wait_while_running(run_id, ask, "Dagster to show a checkpoint")

    def kill_driver(self) -> None:
        """SIGKILL the process that drives Spark, and wait until its JVM has gone too, by itself."""
        processes = self.heartbeat().processes
        os.kill(processes[0].pid, signal.SIGKILL)
        self.wait_gone(processes)

    def wait_gone(self, processes: Iterable[ProcessIdentity]) -> None:
        wait_for(lambda: not any(process.is_alive() for process in processes), f"{processes} to be gone")

    def forget_live_location(self) -> None:
        """Delete the dead run's live location, so that only the retained checkpoints can help."""
        shutil.rmtree(Path(self.choice().live).parent)

    def wait_resumed(self, after: str) -> dg.DagsterRun:
        """Wait for the run that the sensor launches after run ``after``."""

        def ask() -> dg.DagsterRun | None:
            return next((run for run in self.dev.runs(self.name) if run.tags.get(names.PARENT_RUN_TAG) == after), None)

        return wait_for(ask, f"the sensor to resume run {after} (see {self.dev.log})", seconds=PATIENCE, poll=0.5)

    def wait_end(self, run_id: str) -> str:
        def ask() -> str | None:
            status = self.dev.status(run_id)
            return status if status in _FINISHED else None

        return wait_for(ask, f"run {run_id} to end (see {self.dev.log})", seconds=PATIENCE, poll=0.5)

    def assert_succeeds(self, run_id: str) -> None:
        assert self.wait_end(run_id) == "SUCCESS", f"see {self.dev.log}"

    def wait_tick(self, text: str) -> str:
        """Wait for a tick of the sensor that says ``text`` of this job; returns all it said."""
        selector = {**self.dev._repository, "sensorName": "killed_resume_sensor"}

        def ask() -> str | None:
            state = self.dev.graphql(_TICKS, {"sensor": selector})["sensorOrError"]["sensorState"]
            said = [part for tick in state["ticks"] for part in (tick["skipReason"] or "").split("; ")]
            return next((part for part in said if self.name in _jobs_of(part) and text in part), None)

        return wait_for(ask, f"a tick that says {text!r} of {self.name}", seconds=PATIENCE, poll=0.5)

    def assert_all_verify(self) -> list[CheckpointMetadata]:
        """Every listed checkpoint is whole; returns them."""
        completed, broken = self.catalog.completed(self.choice().job_id)
        assert not broken
        for metadata in completed:
            verify_checkpoint(self.catalog, metadata)
        return completed

    def assert_shown(self) -> None:
        """What Dagster shows as partitions is what is retained."""
        with self.dev.instance() as instance:
            shown = set(instance.get_dynamic_partitions(f"{self.name}_checkpoints"))
        assert shown == {names.partition_key(metadata) for metadata in self.completed()}

    def _wait_while_running(self, run_id: str, ask: Callable[[], _T | None], what: str) -> _T:
        asked = count()

        def guarded() -> _T | None:
            answer = ask()
            # To ask Dagster costs far more than to look into the storage.
            if not answer and next(asked) % 10 == 9 and (status := self.dev.status(run_id)) in _FINISHED:
                answer = ask()
                assert answer, f"run {run_id} ended {status} before {what}; see {self.dev.log}"
            return answer

        return wait_for(guarded, f"{what} (see {self.dev.log})", seconds=PATIENCE, poll=0.1)


def step_failure(dev: DagsterDev, run_id: str) -> str:
    """What the failed steps of a run said, errors and their causes."""
    with dev.instance() as instance:
        entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    return "\n".join(str(entry.get_dagster_event().step_failure_data.error) for entry in entries)


def _jobs_of(part: str) -> list[str]:
    """The jobs that a part of a tick's text is about: several that have the same outcome share a part."""
    return part.partition(": ")[0].split(", ")
