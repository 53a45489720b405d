"""The history of a series of savepoints: those that are too many or too old are deleted when the next one is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from dagster_ckpt.checkpoint.catalog import CheckpointCatalog, spot_check
from dagster_ckpt.checkpoint.control import NamedSavepoint
from dagster_ckpt.checkpoint.taking import dispose_claimed
from dagster_ckpt.clock import Clock, seconds_of
from dagster_ckpt.config import duration_of
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, CorruptCheckpoint, InvalidConfiguration
from dagster_ckpt.paths import is_same_place

__all__ = ["SavepointHistory", "delete_surplus_savepoints"]

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
    def of(cls, keep: int | None, max_age: str | None) -> SavepointHistory | None:
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
        # The last one stays, however old, and so does the newest state: of a job that does not run an older is copied.
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
    the job may still go back to by itself stay. What fails is reported, and tried again the next time.

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
        for savepoint in _deleted(catalog, series, history, clock.time(), report, taken):
            report(f"Deleted savepoint {savepoint.name} of the series {series}: {savepoint.reference}")
            deleted.append(savepoint.reference)
    except (CheckpointError, OSError) as error:
        report(f"The history of the series {series} is left as it is, and will be tried again: {error}")
    return deleted


def _deleted(
    catalog: CheckpointCatalog,
    series: str,
    history: SavepointHistory,
    now: float,
    report: Callable[[str], object],
    taken: str,
) -> Iterator[NamedSavepoint]:
    names = catalog.records.taken_savepoints
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
    surplus = history.surplus(sound, now)
    for named in (*left, *surplus):
        if named in surplus and any(is_same_place(named.reference, place) for place in _needed(catalog)):
            report(f"Savepoint {named.name} stays: the job may still go back to it by itself.")
        elif not dispose_claimed(named.reference, like=catalog.filesystem):
            report(f"Savepoint {named.name} could not be deleted, and will be tried again: {named.reference}")
        else:
            names.forget_name(named)
            if named in surplus:
                yield named


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


def _needed(catalog: CheckpointCatalog) -> list[str]:
    """What the job's newest start began with, owns, or falls back to."""
    chosen = catalog.choice()
    if chosen is None:
        return []
    choice = chosen[1]
    return [place for place in (choice.restored, choice.claimed, choice.fallback) if place is not None]
