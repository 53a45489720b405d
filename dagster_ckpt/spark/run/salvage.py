"""A last checkpoint from what a dead run left behind, so that none of its work is lost."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from dagster_ckpt.checkpoint import (
    CHANGED,
    CheckpointCatalog,
    CheckpointMetadata,
    Choice,
    CompletedCheckpointStore,
    Facts,
    Source,
    find_newest,
)
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config import StateLayout
from dagster_ckpt.errors import CheckpointError, CheckpointFailure, CheckpointNotFound, Fenced, PublishUnknown
from dagster_ckpt.spark.capture import StreamingSource
from dagster_ckpt.spark.kafka import parse_topics, with_earlier_topics
from dagster_ckpt.spark.live import QUERY, TOPICS, LiveLocation, LocalLive
from dagster_ckpt.spark.sinks import SinkStart, position_reader
from dagster_ckpt.stored_json import check_tree

__all__ = ["Salvaging", "salvage"]

_log = logging.getLogger(__name__)

Providers: TypeAlias = Mapping[str, StateLayout]


class Salvaging:
    """What the previous run left behind on this host, and the checkpoint that is made of it.

    Args:
        catalog: the job's checkpoints.
        providers: the state store providers with known files, by class.
        previous: the epoch of the previous run, and its choice.
        live: the previous run's live location, ``None`` when it is gone or cannot be reached from here.
        pins: a directory for pinned files that does not exist yet, beside the directories of starts.
        make_store: makes a store for a lineage, given the first id to use and the ancestor of its checkpoints.
    """

    def __init__(
        self,
        catalog: CheckpointCatalog,
        providers: Providers,
        previous: tuple[int, Choice],
        live: LiveLocation | None,
        pins: Path,
        make_store: Callable[[str, int, str | None], CompletedCheckpointStore],
    ) -> None:
        self._catalog = catalog
        self._epoch, self._choice = previous
        self._live = live
        self._pins = pins
        self._make_store = make_store
        self._providers = providers

    def salvage(self) -> None:
        """Checkpoint the previous run's last batch, if its live location still exists and no checkpoint has the batch.

        Raises:
            CorruptMetadata: the newest checkpoint cannot be read.
            CheckpointNotFound: the recorded choice is missing although it was not discarded.
            Fenced: a newer run has taken the job over.
        """
        if self._live is None:
            return
        newest = find_newest(self._catalog)
        if newest.job_id is None or self._has_left(newest.metadata):
            return  # its state was discarded, or the job has gone back
        if newest.passed_over and not self._has_started():
            return
        batch = self._last_batch(self._live)
        if batch is None or (newest.metadata is not None and newest.metadata.batch >= batch):
            return
        ancestor = self._choice.restored if newest.metadata is None else newest.metadata.reference
        self._take(self._live, batch, newest.metadata, ancestor)

    def rescue(self, broken: CheckpointMetadata | None, older: CheckpointMetadata | None) -> bool:
        """Checkpoint the previous run's last batch, even if the newest checkpoint covers it: that checkpoint is broken.

        Args:
            broken: the manifest of the newest checkpoint, ``None`` when the manifest itself is broken. The previous run
                has taken this checkpoint or begun with it, so the live location is never behind the checkpoint.
            older: the ancestor of the newest checkpoint, if it can be read.

        Returns:
            ``False`` when the live location is missing or incomplete.

        Raises:
            Fenced: a newer run has taken the job over.
        """
        if self._live is None or not self._has_started() or self._has_left(broken):
            return False
        batch = self._last_batch(self._live)
        if batch is None or (broken is not None and broken.batch > batch):
            return False
        return self._take(self._live, batch, broken, None if older is None else older.reference)

    def _has_left(self, newest: CheckpointMetadata | None) -> bool:
        """Whether the job has left the line of the previous run: a start after it has published a changed copy.

        That start died before its choice. What the previous run did after the copied checkpoint is undone.
        """
        return newest is not None and newest.kind in CHANGED and newest.epoch > self._epoch

    def _has_started(self) -> bool:
        """Whether the previous run got as far as setting its sink to the state of its live location."""
        archive = self._catalog.records.plans(self._choice.job_id)
        return archive.has_begun(self._epoch)

    def _last_batch(self, live: LiveLocation) -> int | None:
        try:
            return live.location(self._providers).last_committed()
        except OSError as error:  # whatever a dead run left, the retained checkpoints still exist
            _log.warning("What the run before left in %s cannot be read: %s", live.url, error)
            return None

    def _take(self, live: LiveLocation, batch: int, newest: CheckpointMetadata | None, ancestor: str | None) -> bool:
        first_id = self._catalog.next_id(self._choice.job_id, newest)
        store = self._make_store(self._choice.job_id, first_id, ancestor)
        try:
            start = self._start(newest)
        except (CheckpointError, OSError) as error:  # whatever the dead run left, the retained checkpoints still exist
            _log.warning("What the run before wrote to its sink cannot be told from what others wrote: %s", error)
            return False
        earlier = Facts() if newest is None else newest.facts
        return salvage(store, self._choice, live, batch, self._providers, self._pins, start, earlier)

    def _start(self, newest: CheckpointMetadata | None) -> SinkStart | None:
        """The previous run's start, identified by its marks on what it wrote; ``None`` if the start set no marks.

        Everything up to a checkpoint that the start has taken is known to be its own.

        Raises:
            CheckpointNotFound: the start has no records.
            CorruptCheckpoint: the records are not what was written.
            StorageError: the storage failed.
        """
        if not self._choice.marks:
            return None
        archive = self._catalog.records.plans(self._choice.job_id)
        claim, after = self._catalog.records.epochs.read_claim(self._epoch), archive.began_after(self._epoch)
        if claim is None or after is None:
            raise CheckpointNotFound(
                f"Epoch {self._epoch} of job {self._catalog.job_name!r} has no record of its claim or its beginning.",
                hint="Nothing is to be done: the run goes on from the newest checkpoint.",
            )
        if newest is not None and newest.epoch == self._epoch:
            after = max(after, newest.batch)
        return SinkStart(claim.token, after)


def salvage(
    store: CompletedCheckpointStore,
    choice: Choice,
    live: LiveLocation,
    batch: int,
    providers: Providers,
    pins: Path,
    start: SinkStart | None,
    earlier: Facts,
) -> bool:
    """Take a checkpoint of ``batch`` from the live location of ``choice``, if the batch is complete there.

    Args:
        store: stores the checkpoint, under the caller's epoch.
        choice: the previous run's choice.
        live: the previous run's live location.
        batch: the last batch that the previous run committed.
        providers: the state store providers with known files, by class.
        pins: a directory for pinned files that does not exist yet, beside the directories of starts.
        start: the start of ``choice``, identified by its marks on what it wrote; ``None`` if it set no marks.
        earlier: the facts of the newest checkpoint of the lineage.

    Returns:
        ``False`` when the batch is incomplete, or could not be stored.

    Raises:
        Fenced: a newer run has taken the job over.
        PublishUnknown: nobody can tell whether the checkpoint is complete; the next start finds out.
    """
    location = live.location(providers)
    # On a disk the start's directory lies around its live location, even if the working directory has changed.
    directory = live.path.parent if isinstance(live, LocalLive) else pins.parent / live.start
    try:
        source = StreamingSource(
            location,
            pins,
            position_reader(choice, directory, location, start),
            choice.spark_version,
            lambda: None,
            SystemClock(),
            choice.accepted_loss,
            partial(with_earlier_topics, earlier=[*earlier.sources, *_noted_topics(live)]),
            _query_facts(live, earlier),
        )
        pending = store.begin()
        snapshot = source.pin(batch)
        try:
            metadata = store.write(pending, snapshot, kind="salvage")
        except PublishUnknown:
            metadata = _settled(store, pending.number)
        finally:
            snapshot.release()
    except (Fenced, PublishUnknown):  # a salvaged checkpoint that arrives later would be newer than what is restored
        raise
    except Exception as error:  # whatever is wrong with a dead run's files, the retained checkpoints still exist
        _log.warning(
            "Batch %d of the run before could not be salvaged from %s, going on from the newest checkpoint: %s",
            batch,
            choice.live,
            error,
        )
        return False
    else:
        _log.info("Salvaged batch %d of the run before as %s", batch, metadata.name)
        return True
    finally:
        shutil.rmtree(pins, ignore_errors=True)


def _settled(store: CompletedCheckpointStore, number: int) -> CheckpointMetadata:
    """As the store tells; whatever keeps the store from telling, the outcome of the publish stays unknown."""
    try:
        return store.settled(number)
    except (CheckpointFailure, Fenced, PublishUnknown):
        raise
    except Exception as error:
        raise PublishUnknown(
            f"Nobody can say whether chk-{number} of the run before is complete: {error}",
            hint="The next start finds out.",
        ) from error


def _query_facts(live: LiveLocation, earlier: Facts) -> Facts:
    """What the session and the plan of the previous run told; a run of an earlier release has noted nothing."""
    noted = live.noted(QUERY)
    if noted is not None:
        try:
            facts = Facts.model_validate_json(noted).of_query
            check_tree(facts.to_json())
        except ValueError as error:
            _log.warning("What the query of the run before told of itself in %s is not known: %s", live.url, error)
        else:
            return facts
    # A restored session keeps its time zone. The query may have changed.
    return Facts() if earlier.time_zone is None else Facts(time_zone=earlier.time_zone)


def _noted_topics(live: LiveLocation) -> list[Source]:
    """The topics of Kafka that the previous run began to read: they may have been created again since."""
    noted = live.noted(TOPICS)
    try:
        return [] if noted is None else parse_topics(noted)
    except ValueError as error:
        _log.warning("Which topics the run before read in %s is not known: %s", live.url, error)
        return []
