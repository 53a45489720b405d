"""The history of a series of savepoints: those that are too many or too old are deleted when the next one is taken.

A rollback may be going back to one of them at that moment. So a rollback and a history both pin a savepoint first,
under one name: the storage lets one of them create the record. The rollback then checks that the savepoint is still
there, and only then stops the job.

A start may be going back to one of them, too. The start pins nothing, because a pin would outlive a start that is
killed: the start claims its epoch, and then looks for the pin of a history. The history pins, and then leaves every
savepoint alone while the newest epoch has not recorded what the epoch begins with. One of the two sees the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, spot_check
from dagster_ckpt.checkpoint.control import NamedSavepoint, Pin
from dagster_ckpt.checkpoint.format import CheckpointMetadata
from dagster_ckpt.checkpoint.taking import dispose_claimed
from dagster_ckpt.clock import Clock, iso, seconds_of
from dagster_ckpt.config import duration_of
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    InvalidConfiguration,
    PublishConflict,
    RestoreRefused,
)
from dagster_ckpt.paths import is_same_place

__all__ = ["SavepointHistory", "delete_surplus_savepoints", "kept_savepoint", "refuse_half_deleted"]

#: Seconds between the looks of a start at a savepoint that a history holds.
_PAUSES = (0.5, 1.0, 2.0, 4.0)
#: Of each savepoint so much is read, to tell whether it is sound.
_MOST_FILES, _MOST_BYTES = 100, 16 << 20
#: Seconds after which a name without a savepoint is left over: nobody is completing the savepoint any more.
_COMPLETED = 86_400.0


@dataclass(frozen=True, slots=True)
class SavepointHistory:
    """Which savepoints of a series stay: those that no limit excludes.

    Of the sound ones two stay in any case: the one that was taken last, and the one that has the newest state.

    Attributes:
        keep: at most so many; ``None`` for any number.
        max_age: none that is older; ``None`` for any age.
    """

    keep: int | None = None
    max_age: timedelta | None = None

    @classmethod
    def of(cls, keep: int | None, max_age: str | timedelta | None) -> SavepointHistory | None:
        """The history from its limits, ``None`` if there is no limit and nothing is ever deleted.

        Args:
            keep: at most so many.
            max_age: none that is older, such as ``"30 d"``.

        Raises:
            InvalidConfiguration: a limit cannot be used.
        """
        if keep is None and max_age is None:
            return None
        age = None if max_age is None else duration_of("max_age", max_age, "30 d")
        if (keep is not None and keep < 1) or (age is not None and age <= timedelta()):
            raise InvalidConfiguration(
                f"A history of keep={keep}, max_age={max_age} would keep no savepoint.",
                hint="Keep at least 1, and set an age above 0; or leave a limit out.",
            )
        return cls(keep, age)

    def surplus(self, sound: Sequence[NamedSavepoint], now: float) -> list[NamedSavepoint]:
        """The savepoints that are too many or too old.

        Args:
            sound: the sound savepoints of a series, the one that was taken last at the end.
            now: seconds since 1970.
        """
        # The last savepoint and the newest state stay: a savepoint of a stopped job copies an older checkpoint.
        newest = max(sound, key=lambda named: named.key, default=None)
        older = [named for named in sound[:-1] if named != newest]
        too_many = set() if self.keep is None else {named.name for named in sound[: max(len(sound) - self.keep, 0)]}
        limit = float("-inf") if self.max_age is None else now - self.max_age.total_seconds()
        return [named for named in older if named.name in too_many or seconds_of(named.named_at) < limit]


def delete_surplus_savepoints(
    catalog: CheckpointCatalog,
    series: str,
    history: SavepointHistory,
    clock: Clock,
    report: Callable[[str], object],
    *,
    taken: str,
) -> list[str]:
    """Delete the savepoints of a series that its history excludes. Call this after the next one of them was taken.

    Only savepoints with that series on record are looked at. Those that are damaged stay and do not count; those that
    the job may still go back to by itself stay, and so does one that a rollback goes back to now. What fails is
    reported, and tried again the next time.

    Args:
        catalog: the job's checkpoints.
        series: the series.
        history: which of them stay.
        clock: wall time.
        report: called with what is deleted, or why not, in words.
        taken: the directory of the savepoint that was just taken, which stays whatever the clocks say.

    Returns:
        the directories of the deleted savepoints.
    """
    deleted: list[str] = []
    try:
        for savepoint in _deleted(catalog, series, history, clock, report, taken):
            report(f"Deleted savepoint {savepoint.name} of the series {series}: {savepoint.reference}")
            deleted.append(savepoint.reference)
    except (CheckpointError, OSError) as error:
        report(f"The history of the series {series} is left as it is, and will be tried again: {error}")
    return deleted


@contextmanager
def kept_savepoint(
    catalog: CheckpointCatalog, savepoint: CheckpointMetadata, reason: str, clock: Clock
) -> Iterator[None]:
    """Keep a savepoint while the block runs: neither a history nor the job that has claimed it deletes the savepoint.

    Args:
        catalog: the job's checkpoints.
        savepoint: the savepoint.
        reason: who keeps the savepoint, for people.
        clock: wall time.

    Raises:
        RestoreRefused: the savepoint is being deleted at this moment, or somebody else keeps the savepoint.
        CheckpointNotFound: the savepoint was deleted meanwhile.
        StorageError: the storage failed; the savepoint may be kept nevertheless.
    """
    with _pinned(catalog, savepoint, reason, clock):
        catalog.resolve(savepoint.reference)
        yield


def refuse_half_deleted(
    catalog: CheckpointCatalog, savepoint: CheckpointMetadata, wait: Callable[[float], object] = time.sleep
) -> None:
    """Refuse a savepoint that a history is deleting. A start calls this after its claim, before it reads the data.

    A history that has seen the claim lets go of the savepoint soon.

    Args:
        catalog: the job's checkpoints.
        savepoint: what the start was asked to begin with, a savepoint or a checkpoint of any job.
        wait: sleeps for so many seconds.

    Raises:
        RestoreRefused: a history is deleting the savepoint.
        StorageError: the storage failed.
    """
    if savepoint.job_name != catalog.job_name or savepoint.location is None:
        return
    for pause in (*_PAUSES, None):
        held = catalog.records.pins.held(Pin.alone(savepoint.job_id, savepoint.checkpoint_id, "", ""))
        if held is None or not _is_of_history(catalog, savepoint, held):
            return
        if pause is None:
            raise _held(catalog, savepoint.reference, held)
        wait(pause)


def _is_of_history(catalog: CheckpointCatalog, savepoint: CheckpointMetadata, pin: Pin) -> bool:
    """Whether a history holds this savepoint, and not another copy of the same state."""
    return any(
        pin.reason == _reason(named) and is_same_place(named.reference, savepoint.reference)
        for named in catalog.records.taken_savepoints.all_named()
    )


def _held(catalog: CheckpointCatalog, reference: str, pin: Pin) -> RestoreRefused:
    return RestoreRefused(
        f"{reference} is held by another process: {pin.reason or 'whoever held it has just let go of it'}.",
        hint="Wait until that process has ended. If that process was killed, let go of the savepoint with "
        f"`dagster-ckpt unpin {catalog.job_name} {pin.checkpoint} {catalog.filesystem.path_option}`.",
    )


@contextmanager
def _pinned(
    catalog: CheckpointCatalog, savepoint: CheckpointMetadata | NamedSavepoint, reason: str, clock: Clock
) -> Iterator[None]:
    """Hold the one pin of a savepoint; raises RestoreRefused where somebody else holds that pin."""
    pins, pin = catalog.records.pins, _pin_of(savepoint, reason, clock)
    try:
        pins.add(pin)
    except PublishConflict:
        raise _held(catalog, savepoint.reference, pins.held(pin) or replace(pin, reason="")) from None
    try:
        yield
    finally:
        pins.remove(pin)


def _pin_of(savepoint: CheckpointMetadata | NamedSavepoint, reason: str, clock: Clock) -> Pin:
    return Pin.alone(savepoint.job_id, savepoint.checkpoint_id, reason, iso(clock.time()))


def _deleted(
    catalog: CheckpointCatalog,
    series: str,
    history: SavepointHistory,
    clock: Clock,
    report: Callable[[str], object],
    taken: str,
) -> Iterator[NamedSavepoint]:
    names, now = catalog.records.taken_savepoints, clock.time()
    of_series = [named for named in names.all_named() if named.series == series]
    sound: list[NamedSavepoint] = []
    gone: list[NamedSavepoint] = []
    for named in sorted(of_series, key=lambda named: is_same_place(named.reference, taken)):
        try:
            _check(catalog, named)
        except CheckpointNotFound:
            gone.append(named)
        except (CheckpointError, OSError) as error:
            report(f"Savepoint {named.name} cannot be read, and stays: {error}")
        else:
            sound.append(named)
    if not sound:
        return
    # Beside a savepoint that is there, the others are deleted, and not out of reach; a new name may be being completed.
    beside = sound[-1].reference.rpartition("/")[0]
    left = [
        named
        for named in gone
        if named.reference.rpartition("/")[0] == beside and now - seconds_of(named.named_at) > _COMPLETED
    ]
    for named in left:
        if _delete(catalog, named, report):
            _let_go(catalog, _pin_of(named, _reason(named), clock))
    for named in history.surplus(sound, now):
        is_deleted = False
        try:
            with _pinned(catalog, named, _reason(named), clock):
                # Under the pin: a rollback holds the pin until the job has recorded what the job goes on from.
                if _is_starting(catalog):
                    report(f"Savepoint {named.name} stays: a start of the job has not recorded what it begins with.")
                elif any(is_same_place(named.reference, place) for place in _needed(catalog)):
                    report(f"Savepoint {named.name} stays: the job may still go back to it by itself.")
                else:
                    is_deleted = _delete(catalog, named, report)
        except RestoreRefused as error:
            report(f"Savepoint {named.name} stays: {error.message} {error.hint}")
        if is_deleted:
            yield named


def _delete(catalog: CheckpointCatalog, named: NamedSavepoint, report: Callable[[str], object]) -> bool:
    """Delete a savepoint, or what is left of it, and its name; ``False`` if that must be tried again."""
    if not dispose_claimed(named.reference, like=catalog.filesystem):
        report(f"Savepoint {named.name} could not be deleted, and will be tried again: {named.reference}")
        return False
    catalog.records.taken_savepoints.forget_name(named)
    return True


def _let_go(catalog: CheckpointCatalog, pin: Pin) -> None:
    """Remove the pin of a history that was killed, but not the pin of a rollback to another copy of the same state."""
    pins = catalog.records.pins
    held = pins.held(pin)
    if held is not None and held.reason == pin.reason:
        pins.remove(pin)


def _reason(named: NamedSavepoint) -> str:
    return f"the history of the series {named.series} deletes {named.name}"


def _check(catalog: CheckpointCatalog, named: NamedSavepoint) -> None:
    """Make sure that a savepoint is there under its name, with every file, and that the first bytes are as written.

    Raises:
        CheckpointNotFound: the savepoint is gone.
        CorruptCheckpoint: the savepoint is damaged, or another one lies in its place.
        StorageError: the storage failed.
    """
    savepoint = catalog.resolve(named.reference)
    if (savepoint.job_name, savepoint.given_name) != (catalog.job_name, named.name):
        raise CorruptCheckpoint(
            f"{named.reference} holds another savepoint.", hint="Move the savepoint that you have put there elsewhere."
        )
    spot_check(catalog, savepoint, after="", most_files=_MOST_FILES, most_bytes=_MOST_BYTES)


def _is_starting(catalog: CheckpointCatalog) -> bool:
    """Whether the newest epoch has not recorded what it begins with, and a start of the job goes on or will follow."""
    epochs = catalog.records.epochs
    epoch, kinds = max(epochs.names().items(), default=(0, {"choice"}))
    if "choice" in kinds:
        return False
    end = epochs.read_end(epoch)
    return end is None or not end.is_final


def _needed(catalog: CheckpointCatalog) -> list[str]:
    """What the job's newest start began with, owns, or falls back to, or goes back to if its new version fails."""
    chosen = catalog.choice()
    if chosen is None:
        return []
    choice, upgrade = chosen[1], chosen[1].code.upgrade
    before = None if upgrade is None else upgrade.checkpoint
    return [place for place in (choice.restored, choice.claimed, choice.fallback, before) if place is not None]
