"""The reading side of the storage: which checkpoints exist, and what their manifests say.

Reading needs no epoch and changes nothing, so the CLI, the sensor and the UI can read beside a running job.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from dagster_ckpt.checkpoint.catalog.pointers import SAVEPOINT_POINTER, resolve_checkpoint_pointer
from dagster_ckpt.checkpoint.catalog.voiding import BY_NO_EPOCH, Voiding
from dagster_ckpt.checkpoint.control import Choice, End, JobRecords
from dagster_ckpt.checkpoint.format import (
    METADATA_FILE_NAME,
    SAVEPOINT,
    CheckpointMetadata,
    FileEntry,
    checkpoint_directory,
    checkpoint_id,
    is_job_id,
    validate_job_name,
)
from dagster_ckpt.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    CorruptMetadata,
    CorruptRecord,
    ForeignCheckpoint,
    StorageError,
)
from dagster_ckpt.filesystem import FileSystem, open_filesystem
from dagster_ckpt.garbage_collector import without_collection
from dagster_ckpt.paths import is_same_place

__all__ = ["CheckpointCatalog", "references", "shared_in_use", "unreadable_id"]

_log = logging.getLogger(__name__)

#: Shown instead of a pointer for a checkpoint in a driver's memory.
NOT_ADDRESSABLE = "<checkpoint-not-externally-addressable>"
#: The number may be greater than any that a checkpoint gets. Python makes no number of some thousand digits.
_SHORT = re.compile(r"(?:([0-9a-f]{32})/)?chk-([1-9][0-9]{0,999})/?")
_INSIDE = re.compile(r"([^/]+)/([0-9a-f]{32})/chk-([1-9][0-9]{0,999})")


class CheckpointCatalog:
    """The completed checkpoints of one job name.

    Args:
        filesystem: the storage.
        job_name: the job's stable name.

    Attributes:
        records: the job's records.
    """

    def __init__(self, filesystem: FileSystem, job_name: str) -> None:
        self.filesystem = filesystem
        self.job_name = validate_job_name(job_name)
        self.records = JobRecords(filesystem, job_name)
        self._voiding = Voiding(self.records)
        #: What manifests say, by lineage and id, for the next call of :meth:`completed` alone.
        self._known: dict[str, dict[int, CheckpointMetadata]] = {}

    def job_ids(self) -> list[str]:
        """The lineages that have a directory, in no particular order."""
        entries = self.filesystem.list(self.job_name)
        return [entry.name for entry in entries if entry.is_directory and is_job_id(entry.name)]

    def numbers(self, job_id: str) -> list[int]:
        """The ids of all ``chk-N`` directories, ascending by number, completed or not."""
        entries = self.filesystem.list(f"{self.job_name}/{job_id}")
        return sorted(number for entry in entries if (number := checkpoint_id(entry.name)) is not None)

    def next_id(self, job_id: str, restored: CheckpointMetadata | None = None) -> int:
        """The next id of a lineage: above every id ever issued, every ``chk-N`` there, and ``restored``.

        Raises:
            CorruptRecord: a record of version 1 does not hold an id.
        """
        return self.records.issued(job_id).next(self.numbers(job_id), restored.checkpoint_id if restored else 0)

    def pointer(self, metadata: CheckpointMetadata) -> str:
        """The checkpoint's path, as ``restore_from`` takes it; for one in memory, a text that says there is none."""
        if metadata.location is not None:
            return metadata.location
        if not self.filesystem.is_durable:
            return NOT_ADDRESSABLE
        directory = checkpoint_directory(metadata.job_name, metadata.job_id, metadata.checkpoint_id)
        return f"{self.filesystem.url}/{directory}"

    def storage_of(self, metadata: CheckpointMetadata) -> FileSystem:
        """The file system with the files of a checkpoint: the job's storage, or a savepoint's own directory."""
        return (
            self.filesystem if metadata.location is None else open_filesystem(metadata.location, like=self.filesystem)
        )

    def stored_path(self, metadata: CheckpointMetadata, reference: str) -> str:
        """The path, in the checkpoint's :meth:`storage_of`, of a file that the checkpoint refers to."""
        if metadata.location is not None:
            return reference
        directory = f"{metadata.job_name}/{metadata.job_id}"
        inside = reference.removeprefix("../")
        return f"{directory}/{inside}" if inside != reference else f"{directory}/{metadata.name}/{inside}"

    def load(self, job_id: str, number: int, *, named: bool = False) -> CheckpointMetadata:
        """The manifest of one checkpoint.

        Args:
            job_id: the lineage.
            number: the checkpoint's id.
            named: a user has named the checkpoint, and so accepts it even when damaged records do not tell whether it
                is void.

        Raises:
            CheckpointNotFound: there is no completed checkpoint with that id.
            CorruptMetadata: its ``_metadata`` cannot be trusted.
            CorruptRecord: damaged records do not tell whether the checkpoint is void.
            ForeignCheckpoint: its ``_metadata`` belongs to another job.
        """
        data = self.filesystem.read_if_there(self.manifest(job_id, number))
        metadata = self._decoded(job_id, number, data)
        try:
            self._check_standing(metadata, self.records.epochs.names())
        except CorruptRecord as error:
            if not named:
                raise
            _log.warning("Nobody can tell whether %s is void: %s", self.pointer(metadata), error.message)
        return metadata

    def manifest(self, job_id: str, number: int) -> str:
        """The path of a checkpoint's manifest."""
        return f"{checkpoint_directory(self.job_name, job_id, number)}/{METADATA_FILE_NAME}"

    def _decoded(
        self, job_id: str, number: int, data: bytes | None, lines: dict[bytes, FileEntry] | None = None
    ) -> CheckpointMetadata:
        """The manifest in ``data``; ``lines`` as for :meth:`CheckpointMetadata.decode`, errors as for :meth:`load`."""
        where = f"{self.filesystem.url}/{self.manifest(job_id, number)}"
        if data is None:
            missing = f"Cannot find meta data file '_metadata' in directory '{where.rpartition('/')[0]}'."
            raise CheckpointNotFound(missing, hint=self._see_list)
        try:
            metadata = CheckpointMetadata.decode(data, where, lines)
            if metadata.job_name != self.job_name:
                raise self._foreign(where, metadata.job_name)
            if (metadata.job_id, metadata.checkpoint_id) != (job_id, number) or metadata.kind == SAVEPOINT:
                raise CorruptMetadata(
                    f"{where} says it is {metadata.reference}: it was moved or copied here by hand.",
                    hint="Copy the directory of a whole job, not single checkpoints.",
                )
        except CorruptCheckpoint as error:
            error.checkpoint = f"{job_id}/chk-{number}"
            raise
        return metadata

    def _check_standing(self, metadata: CheckpointMetadata, names: dict[int, set[str]]) -> None:
        """Check, by the listing ``names`` of the epochs, that a checkpoint is not void.

        Raises:
            CheckpointNotFound: the checkpoint is void.
            CorruptRecord: damaged records do not tell.
        """
        try:
            epoch = self._voiding.voided_by(metadata, names)
        except CorruptRecord as error:
            error.checkpoint = metadata.reference
            raise
        if epoch is not None:
            when = f"epoch {epoch} had taken the job over" if epoch > metadata.epoch else "the job was over and swept"
            why = f"epoch {metadata.epoch} published it after {when}"
            if epoch == BY_NO_EPOCH:
                why = "the reply to its publish was lost, and the publish was given up"
            where = f"{self.filesystem.url}/{self.manifest(metadata.job_id, metadata.checkpoint_id)}"
            raise CheckpointNotFound(f"{where} is void: {why}.", hint=self._see_list)

    def completed(
        self, job_id: str, *, once_more: bool = False
    ) -> tuple[list[CheckpointMetadata], list[CorruptCheckpoint]]:
        """The completed checkpoints of one lineage by (epoch, id), and the errors of the unreadable ones.

        Args:
            job_id: the lineage.
            once_more: the caller will ask again at once, and what was read now is not read again then.
        """
        found: list[CheckpointMetadata] = []
        broken: list[CorruptCheckpoint] = []
        known, self._known = self._known.get(job_id, {}), {}
        listed: list[int] = []

        def unread() -> list[int]:
            listed[:] = self.numbers(job_id)
            return [number for number in listed if number not in known]

        contents = self.filesystem.read_listed(unread, partial(self.manifest, job_id))
        names = self.records.epochs.names() if listed else {}  # after the manifests: every takeover is seen
        lines: dict[bytes, FileEntry] = {}
        with without_collection():
            for number in listed:
                try:
                    metadata = known.get(number) or self._decoded(job_id, number, contents[number], lines)
                    self._check_standing(metadata, names)
                except CheckpointNotFound:
                    continue
                except CorruptCheckpoint as error:
                    broken.append(error)
                else:
                    found.append(metadata)
        if once_more:
            self._known = {job_id: {metadata.checkpoint_id: metadata for metadata in found}}
        return sorted(found, key=attrgetter("key")), broken

    def completed_ids(self, job_id: str, *, once_more: bool = False) -> tuple[int, ...]:
        """The ids of a lineage's checkpoints that are complete now, ascending; unreadable and undecided ones, too."""
        completed, broken = self.completed(job_id, once_more=once_more)
        unreadable = set(map(unreadable_id, broken)) - {0}
        return tuple(sorted({item.checkpoint_id for item in completed} | unreadable))

    def completed_at_choice(self, epoch: int, job_id: str, restored: CheckpointMetadata | None) -> tuple[int, ...]:
        """The ids that a choice is to record as complete. Every other checkpoint of earlier epochs is void then.

        A missing directory is listed as empty, for example when a mount went away. So the ids must contain the
        checkpoint that was restored, if it is of this lineage.

        Args:
            epoch: of the run that is choosing.
            job_id: the lineage.
            restored: the checkpoint or savepoint that was restored, of this lineage or from elsewhere.

        Raises:
            Fenced: a newer run has taken the job over, and may have deleted the restored checkpoint.
            StorageError: the listing lacks the restored checkpoint, or the storage failed.
        """
        complete = self.completed_ids(job_id, once_more=True)
        own = restored if restored is not None and (restored.location, restored.job_id) == (None, job_id) else None
        if own is not None and own.checkpoint_id not in complete:
            self.records.epochs.check(epoch)
            raise self.unlisted(own)
        return complete

    def unlisted(self, metadata: CheckpointMetadata) -> StorageError:
        """The error for a listing that does not show a checkpoint which could be read."""
        return StorageError(
            f"{self.filesystem.url}/{self.job_name}/{metadata.job_id} is listed without {metadata.name}, which was "
            "read from there just now: what the storage lists cannot be believed.",
            hint="No checkpoint was touched. Check that the storage is still mounted there, and launch the job "
            f"again. {self._see_list}",
        )

    def last_completed(self, job_id: str) -> int:
        """The greatest id of a lineage's checkpoints that are complete now, 0 when there is none."""
        return max(self.completed_ids(job_id), default=0)

    def choice(self) -> tuple[int, Choice] | None:
        """The newest recorded choice and its epoch."""
        return self.choice_among(self.records.epochs.names())

    def choice_among(self, names: Mapping[int, set[str]]) -> tuple[int, Choice] | None:
        """The newest choice and its epoch, from the listing ``names`` of the epochs."""
        for epoch in sorted((epoch for epoch, kinds in names.items() if "choice" in kinds), reverse=True):
            if choice := self.records.epochs.read_choice(epoch):
                self._voiding.note(epoch, choice)
                return epoch, choice
        return None

    def choices(self) -> dict[int, Choice]:
        """The recorded choices, by epoch."""
        epochs = sorted(epoch for epoch, kinds in self.records.epochs.names().items() if "choice" in kinds)
        return {epoch: choice for epoch in epochs if (choice := self.records.epochs.read_choice(epoch)) is not None}

    def given_up(self) -> End | None:
        """The end at which the cleanup policy discarded the newest choice's lineage, if it did."""
        names = self.records.epochs.names()
        chosen = self.choice_among(names)
        return None if chosen is None else self.given_up_since(chosen[0], names)

    def given_up_since(self, chooser: int, names: Mapping[int, set[str]]) -> End | None:
        """The end that discarded the lineage chosen by epoch ``chooser``, from the listing ``names`` of the epochs."""
        # The end may be of a later epoch: the cleanup after a dead run claims an epoch.
        for epoch, kinds in names.items():
            if epoch >= chooser and "end" in kinds:
                end = self.records.epochs.read_end(epoch)
                if end is not None and end.discarded:
                    return end
        return None

    def resolve(self, pointer: str) -> CheckpointMetadata:
        """The checkpoint or savepoint that a user named: ``chk-N``, ``{job id}/chk-N``, ``savepoint:NAME``, or a path.

        Raises:
            CheckpointNotFound: ``pointer`` names nothing.
            ForeignCheckpoint: ``pointer`` names a checkpoint of another job or of another storage.
        """
        if short := _SHORT.fullmatch(pointer):
            job_id = short[1]
            if job_id is None:
                chosen = self.choice()
                if chosen is None:
                    raise CheckpointNotFound(
                        f"Cannot find {pointer}: job {self.job_name!r} has no checkpoint in {self.filesystem.url}.",
                        hint="Launch the job without restore_from to begin.",
                    )
                job_id = chosen[1].job_id
            return self._named(job_id, int(short[2]))
        if pointer.startswith(SAVEPOINT_POINTER):
            return self._savepoint_named(pointer.removeprefix(SAVEPOINT_POINTER))
        return self._resolve_path(pointer)

    def _savepoint_named(self, name: str) -> CheckpointMetadata:
        named = self.records.taken_savepoints.named(name)
        if named is not None:
            return self._resolve_path(named.reference)
        names = [known.name for known in self.records.taken_savepoints.all_named()]
        raise CheckpointNotFound(
            f"No savepoint of job {self.job_name!r} has the name {name!r}.",
            hint=f"The names of its savepoints: {', '.join(names) or 'none'}. See `dagster-ckpt savepoints "
            f"{self.job_name} {self.filesystem.path_option}`.",
        )

    def _named(self, job_id: str, number: int) -> CheckpointMetadata:
        """A checkpoint that a user named; if it is not there, the error tells which is the nearest."""
        try:
            return self.load(job_id, number, named=True)
        except CheckpointNotFound as error:
            there, _ = self.completed(job_id)
            if there:
                nearest = min(there, key=lambda metadata: abs(metadata.checkpoint_id - number))
                newest = there[-1]
                near = "" if nearest is newest else f"The nearest is {nearest.name}, and the"
                error.hint = f"{near or 'The'} newest is {newest.name}. {error.hint}"
            raise

    def _resolve_path(self, pointer: str) -> CheckpointMetadata:
        own = pointer.removeprefix(f"{self.filesystem.url}/").removesuffix(f"/{METADATA_FILE_NAME}").strip("/")
        if inside := _INSIDE.fullmatch(own):
            # A path in the job's own storage, of any kind: it need not be readable as a local path.
            if inside[1] != self.job_name:
                where = f"{self.filesystem.url}/{own}/{METADATA_FILE_NAME}"
                raise self._foreign(where, inside[1])
            return self._named(inside[2], int(inside[3]))
        location = resolve_checkpoint_pointer(pointer, self._see_list, like=self.filesystem)
        metadata = location.metadata()
        if metadata.job_name != self.job_name:
            raise self._foreign(location.metadata_file, metadata.job_name)
        if metadata.kind == SAVEPOINT:
            if any(reference.startswith("../") for reference in metadata.references):
                raise CorruptMetadata(
                    f"{location.metadata_file} is a savepoint and refers to files outside its directory.",
                    hint=self._see_list,
                )
            return replace(metadata, location=location.external_pointer)
        if not is_same_place(self.pointer(metadata), location.external_pointer):
            raise ForeignCheckpoint(
                f"{pointer} is not in this job's storage {self.filesystem.url}.",
                hint="Set checkpoint_path to the storage that holds it, or copy the directory of the whole job "
                f"to {self.filesystem.url}/{self.job_name}.",
            )
        return self.load(metadata.job_id, metadata.checkpoint_id, named=True)

    @property
    def _see_list(self) -> str:
        return f"See the completed checkpoints with `dagster-ckpt list {self.job_name} {self.filesystem.path_option}`."

    def _foreign(self, where: str, owner: str) -> ForeignCheckpoint:
        return ForeignCheckpoint(f"{where} belongs to job {owner!r}, not to {self.job_name!r}.", hint=self._see_list)


def shared_in_use(catalog: CheckpointCatalog, job_id: str) -> frozenset[str] | None:
    """The names in ``shared/`` that a lineage's completed checkpoints need; ``None`` when one cannot be read."""
    completed, broken = catalog.completed(job_id)
    return None if broken else frozenset(name.rpartition("/")[2] for name in references(completed))


def unreadable_id(error: CorruptCheckpoint) -> int:
    """The id of an unreadable checkpoint, from its directory name; 0 when the name tells none."""
    return checkpoint_id((error.checkpoint or "").rpartition("/")[2]) or 0


def references(checkpoints: Sequence[CheckpointMetadata]) -> frozenset[str]:
    """The stored files that any of ``checkpoints`` needs."""
    return frozenset().union(*(metadata.references for metadata in checkpoints))
