"""The files that checkpoints share: what is stored already, what is in use, and storing what is new.

A file is shared by name *and* content, because Spark may write other bytes under a name it has used before. It lies
in ``shared/`` under a name of its own that is never used again.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from dagster_ckpt.checkpoint.catalog.catalog import references
from dagster_ckpt.checkpoint.format.layout import CHECKPOINT_SHARED_STATE_DIR
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.checkpoint.format.snapshot import Identity, PinnedFile, Snapshot
from dagster_ckpt.checkpoint.taking.compaction import mostly_dead
from dagster_ckpt.checkpoint.taking.data_files import DataFiles
from dagster_ckpt.checkpoint.taking.progress import Gauge
from dagster_ckpt.errors import CheckpointFailure
from dagster_ckpt.filesystem import FileSystem, Part, Stopped, Stored, Written

__all__ = ["DEFAULT_INLINE_THRESHOLD", "MAX_INLINE_BYTES", "SharedState"]

#: Inline bytes in one ``_metadata`` never exceed this, whatever the threshold for one file.
MAX_INLINE_BYTES = 1 << 20
DEFAULT_INLINE_THRESHOLD = 20 * 1024


class SharedState:
    """The shared files of one lineage, as one epoch knows them. Thread-safe.

    Args:
        filesystem: the storage.
        directory: ``{job name}/{job id}/shared``.
        epoch: of the writer, part of every new name.
        inline_threshold: files of at most this many bytes are small: those that do not recur are kept in
            ``_metadata`` (1 MiB in all), the others are packed together.
        verified: a checkpoint whose every file has just been read and found sound; the files of a savepoint are its own
            and shared by nobody.
        max_state_size: every file is kept in ``_metadata``, and none may be larger than this, in bytes; ``None`` for
            files that are stored as such.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        epoch: int,
        inline_threshold: int,
        verified: CheckpointMetadata | None,
        max_state_size: int | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._max_state_size = max_state_size
        self._shared = directory
        self._epoch = epoch
        self._inline_threshold = inline_threshold
        self._lock = threading.RLock()
        self._retained: Sequence[CheckpointMetadata] = ()
        self._in_flight: dict[int, frozenset[str]] = {}
        self._written: dict[int, DataFiles] = {}
        self._by_identity: dict[tuple[str, Identity], FileEntry] = {}
        self._by_content: dict[tuple[str, int, str], FileEntry] = {}
        self._sizes: set[tuple[str, int]] = set()
        self._pack_sizes: dict[str, int] = {}
        self._sound = {
            (file.reference, file.offset)
            for file in (verified.files if verified is not None and verified.location is None else ())
            if file.reference is not None
        }

    def retain(self, checkpoints: Sequence[CheckpointMetadata]) -> None:
        """These are the completed checkpoints now; only what they need may be shared."""
        stored = [file for metadata in checkpoints for file in metadata.files if file.reference is not None]
        alive = {file.reference for file in stored}
        with self._lock:
            self._retained = checkpoints
            self._by_content = {
                (file.path, file.size, content): file for file in stored if (content := _content_of(file)) is not None
            }
            self._sizes = {(file.path, file.size) for file in stored}
            self._by_identity = {
                key: entry
                for key, entry in self._by_identity.items()
                if entry.reference is None or entry.reference in alive
            }
            self._pack_sizes = {pack: size for pack, size in self._pack_sizes.items() if pack in alive}

    def remember(self, snapshot: Snapshot, entries: Sequence[FileEntry]) -> None:
        """A checkpoint of ``snapshot`` completed: the same unchanged files need not be read again."""
        with self._lock:
            self._by_identity = {
                (file.path, file.identity): entry
                for file, entry in zip(snapshot.files, entries, strict=True)
                if file.identity is not None
            }

    def in_use(self) -> frozenset[str]:
        """The names in ``shared/`` that a completed checkpoint or an attempt needs."""
        with self._lock:
            pinned = frozenset().union(*self._in_flight.values())
            return frozenset(name.rpartition("/")[2] for name in references(self._retained) | pinned)

    def release(self, number: int) -> None:
        """The attempt is over; what it refers to is needed only if it completed."""
        with self._lock:
            self._in_flight.pop(number, None)
            self._written.pop(number, None)

    def undo(self, number: int) -> None:
        """Delete what a failed attempt wrote; what the storage refuses to delete is unreachable and harms nobody."""
        if (files := self._written.get(number)) is not None:
            files.undo()

    def store(
        self, number: int, snapshot: Snapshot, stop: Callable[[], bool], storing: Gauge
    ) -> tuple[tuple[FileEntry, ...], int]:
        """Store what no retained checkpoint has, and what is left of packs that are mostly dead.

        Returns the entries of all files, and the bytes that were written. Until :meth:`release` for the same
        ``number``, nothing the entries refer to may be deleted. ``storing`` is told how far it is.

        Raises:
            Stopped: ``stop()`` became true.
            CheckpointFailure: a pinned file is not what it was, or larger than the state may be.
            StorageError: the storage failed.
        """
        if self._max_state_size is not None:
            return self._all_inline(snapshot, self._max_state_size, stop)
        entries: dict[str, FileEntry] = {}
        to_write: list[PinnedFile] = []
        # Names tell whose they are: a sweeper leaves the files of newer epochs alone.
        files = self._written[number] = DataFiles(
            self._filesystem,
            self._shared,
            storing,
            prefix=f"{self._epoch:06}-",
            referred_as=f"../{CHECKPOINT_SHARED_STATE_DIR}/",
        )
        inline_bytes = 0
        with self._lock:
            for file in snapshot.files:
                known = self._by_identity.get((file.path, file.identity)) if file.identity is not None else None
                if known is not None and known.reference is not None:
                    entries[file.path] = known
            # Held from before the first decision to reuse a file until the publish: a subsumption that runs
            # meanwhile must not delete what this attempt is about to refer to.
            self._in_flight[number] = frozenset(
                entry.reference for entry in entries.values() if entry.reference is not None
            )
        to_pack: list[PinnedFile] = []
        for file in snapshot.files:
            if file.path in entries:
                continue
            small = file.size <= self._inline_threshold
            if small and not file.recurs and inline_bytes + file.size <= MAX_INLINE_BYTES:
                entries[file.path] = self._inline(file)
                inline_bytes += file.size
            elif (same := self._same_content(number, file)) is not None:
                entries[file.path] = same
            else:
                # What its store copies is not packed: its bytes would have to come here for that.
                (to_pack if small and file.source is None else to_write).append(file)
        for file in self._moved(entries, snapshot):
            (to_pack if file.source is None else to_write).append(file)
        storing.begin(sum(file.size for file in [*to_write, *to_pack]))
        new_bytes = inline_bytes
        for entry in [
            *files.write_whole(to_write, stop),
            *files.write_packed(to_pack, stop),
        ]:
            entries[entry.path] = entry
            new_bytes += entry.size
        self._remember_packs(entries[file.path] for file in to_pack)
        return tuple(entries[file.path] for file in snapshot.files), new_bytes

    def _moved(self, entries: Mapping[str, FileEntry], snapshot: Snapshot) -> list[PinnedFile]:
        """The files of ``snapshot`` that lie in packs which are mostly dead."""
        packs = {entry.reference for entry in entries.values() if entry.reference and entry.offset is not None}
        with self._lock:
            sizes: dict[str, int | None] = {pack: size for pack, size in self._pack_sizes.items() if pack in packs}
        unknown = sorted(packs - sizes.keys())
        found = self._filesystem.size_many([f"{self._shared}/{PurePosixPath(pack).name}" for pack in unknown])
        asked = dict(zip(unknown, found, strict=True))
        with self._lock:
            self._pack_sizes.update((pack, size) for pack, size in asked.items() if size is not None)
        dead = mostly_dead(entries.values(), sizes | asked)
        return [file for file in snapshot.files if file.path in entries and entries[file.path].reference in dead]

    def _remember_packs(self, packed: Iterable[FileEntry]) -> None:
        """These were just packed; their packs hold nothing else."""
        sizes: Counter[str] = Counter()
        for entry in packed:
            sizes[entry.reference or ""] += entry.size
        with self._lock:
            self._pack_sizes.update(sizes)

    def _all_inline(
        self, snapshot: Snapshot, max_state_size: int, stop: Callable[[], bool]
    ) -> tuple[tuple[FileEntry, ...], int]:
        entries, new_bytes = [], 0
        for file in snapshot.files:
            if stop():
                raise Stopped
            if file.size > max_state_size:
                raise CheckpointFailure(
                    "Size of the state is larger than the maximum permitted memory-backed state. "
                    f"Size={file.size}, maxSize={max_state_size} ({file.path}).",
                    hint="Consider using a different checkpoint storage, like the FileSystemCheckpointStorage, "
                    "or raise max_state_size.",
                )
            with self._lock:
                known = self._by_identity.get((file.path, file.identity)) if file.identity is not None else None
            entries.append(known or self._inline(file))
            new_bytes += 0 if known else file.size
        return tuple(entries), new_bytes

    def _inline(self, file: PinnedFile) -> FileEntry:
        if file.identity is not None and (known := self._by_identity.get((file.path, file.identity))) is not None:
            return known
        return inline_entry(file.path, file.read())

    def _same_content(self, number: int, file: PinnedFile) -> FileEntry | None:
        """A retained copy of the same name with the same bytes: after a restart identities are not known."""
        with self._lock:
            if (file.path, file.size) not in self._sizes:
                return None
        content = file_sha256(file) if file.source is None else _md5_of(file.source.of)
        if content is None:
            return None
        with self._lock:
            known = self._by_content.get((file.path, file.size, content))
            if known is None or known.reference is None:
                return None
            self._in_flight[number] |= {known.reference}
        return known if self._is_sound(known) else None

    def _is_sound(self, entry: FileEntry) -> bool:
        """Whether a stored file is what its manifest says: read once, unless this run wrote or restored it.

        A new checkpoint must not inherit the damage of an old one.
        """
        place = (entry.reference or "", entry.offset)
        if place not in self._sound:
            part = None if entry.offset is None else Part(entry.offset, entry.size)
            path = f"{self._shared}/{PurePosixPath(place[0]).name}"
            try:
                if not self._is_as_written(path, part, entry):
                    return False
            except OSError:
                return False
            self._sound.add(place)
        return True

    def _is_as_written(self, path: str, part: Part | None, entry: FileEntry) -> bool:
        if entry.stored is None:
            return self._filesystem.checksum(path, part) == Written(entry.size, entry.sha256 or "")
        # Only what a store tells by itself is asked for here, and it tells it without reading.
        store = self._filesystem.copies
        return store is not None and store.stored(path).is_same_content(entry.stored)

    def know(self, files: Iterable[tuple[FileEntry, Identity]]) -> None:
        """The live objects of these identities were copied from these entries, and need not be copied back.

        Those that no retained checkpoint of this lineage has are not heeded.
        """
        with self._lock:
            alive = references(self._retained)
            for entry, identity in files:
                if entry.reference in alive:
                    self._by_identity[entry.path, identity] = entry


def _content_of(entry: FileEntry) -> str | None:
    """A digest that tells a stored file's content from any other: CRC32C alone is too short for that."""
    return entry.sha256 if entry.stored is None else _md5_of(entry.stored)


def _md5_of(stored: Stored) -> str | None:
    return None if stored.md5 is None else f"md5:{stored.md5}"


def file_sha256(file: PinnedFile) -> str:
    """SHA-256 of a pinned file's bytes."""
    with Path(file.local).open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def inline_entry(path: str, data: bytes) -> FileEntry:
    """A file kept in ``_metadata`` itself."""
    return FileEntry(path, len(data), hashlib.sha256(data).hexdigest(), inline=data)
