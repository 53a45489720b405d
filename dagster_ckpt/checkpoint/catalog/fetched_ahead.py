"""The files of a job's newest checkpoint, on this machine before a start needs them.

A standby of a job whose checkpoints lie in a bucket, or in another distant storage, fetches each checkpoint as it
completes, and of each only what is not here yet. A start then moves the files to where it needs them, and reads from
the storage what is missing. So a start is right without what was fetched, only slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import read_files
from dagster_ckpt.checkpoint.format import FileEntry, checkpoint_id
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.filesystem import make_working_directory, scratch_directory
from dagster_ckpt.shown_text import first_line

__all__ = ["FetchedAhead"]

_log = logging.getLogger(__name__)

_LATER = "%s was not fetched ahead, which may be tried again: %s"

#: Where files are until they are whole and compared with the manifest.
_INCOMING: Final = "incoming"
#: How many times as many files as may be under way at once are fetched before the next look whether to go on.
_GROUP = 4
#: Seconds after a failure until the next attempt.
_PATIENCE = 30.0


class FetchedAhead:
    """Fetches one checkpoint at a time, on a thread of its own. A fetched file is named by its SHA-256.

    A file is compared with the manifest when it comes, and again when a start takes it.

    Args:
        catalog: of the job.
        working_directory: of the job on this machine; what a killed process leaves here goes with the next start or
            standby.
        private_from: as of :func:`~dagster_ckpt.filesystem.make_working_directory`.
    """

    def __init__(self, catalog: CheckpointCatalog, working_directory: Path, private_from: Path | None) -> None:
        self._catalog, self._working, self._private_from = catalog, working_directory, private_from
        self._directory: Path | None = None
        self._left = contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        self._fetched = ""
        self._stopped = threading.Event()

    def fetch(self, reference: str) -> None:
        """Fetch a checkpoint, unless it is here, or another one is under way.

        Args:
            reference: ``{job id}/chk-N``, the newest that is complete.
        """
        under_way = self._thread is not None and self._thread.is_alive()
        if under_way or reference == self._fetched:
            return
        self._stopped.clear()
        thread = threading.Thread(target=self._fetch, args=(reference,), name="dagster-ckpt-ahead", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:  # there can be no more threads
            _log.info(_LATER, reference, error)

    @property
    def has_any(self) -> bool:
        """Whether a checkpoint has been fetched."""
        return bool(self._fetched)

    def wait(self) -> None:
        """Wait until nothing is under way."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Begin nothing more, until the next :meth:`fetch`: a start needs the line to the storage for itself."""
        self._stopped.set()

    def take(self, files: Sequence[FileEntry], target: Path, told: Callable[[int], object]) -> tuple[FileEntry, ...]:
        """Move files to where a start needs them; returns those that are not here.

        Args:
            files: of the checkpoint.
            target: the directory to move the files to, with all its subdirectories.
            told: is called with the size of each file that was moved, on several threads.
        """
        return self._placed(Path.replace, files, target, told)

    def lend(self, files: Sequence[FileEntry], target: Path, told: Callable[[int], object]) -> tuple[FileEntry, ...]:
        """As :meth:`take`, and keep the files: they are linked, and so are not to be changed in their place."""
        return self._placed(os.link, files, target, told)

    def _placed(
        self,
        place: Callable[[Path, Path], object],
        files: Sequence[FileEntry],
        target: Path,
        told: Callable[[int], object],
    ) -> tuple[FileEntry, ...]:
        if self._directory is None:
            return tuple(files)
        one = partial(_placed, place, self._directory, target, told)
        with ThreadPoolExecutor(os.cpu_count(), "dagster-ckpt-take") as pool:
            is_here = list(pool.map(one, files))
        return tuple(file for file, here in zip(files, is_here, strict=True) if not here)

    def remove(self) -> None:
        """Fetch nothing more, and delete what is here."""
        self.stop()
        self._left.close()

    def _fetch(self, reference: str) -> None:
        try:
            self._fetch_missing(reference, self._made())
        except (CheckpointError, OSError) as error:
            # Nothing depends on it. The storage may be down, or the job may have replaced the checkpoint meanwhile.
            _log.info(_LATER, reference, first_line(error))
            self._stopped.wait(_PATIENCE)

    def _fetch_missing(self, reference: str, directory: Path) -> None:
        job_id, _, name = reference.partition("/")
        metadata = self._catalog.load(job_id, checkpoint_id(name) or 0)
        needed = {
            file.sha256: file for file in metadata.files if file.reference is not None and file.sha256 is not None
        }
        here = {path.name for path in directory.iterdir()}
        for name in here - needed.keys():
            _delete(directory / name)
        missing = [file for digest, file in needed.items() if digest not in here]
        storage, located = self._catalog.storage_of(metadata), partial(self._catalog.stored_path, metadata)
        if shutil.disk_usage(directory).free < 2 * sum(file.size for file in missing):
            _log.warning("%s is not fetched ahead: %s has less than twice the room for it.", reference, directory)
            missing = []
        size = _GROUP * storage.concurrency
        for begin in range(0, len(missing), size):
            if self._stopped.is_set():
                return
            incoming = directory / _INCOMING
            incoming.mkdir(mode=0o700)
            group = [file._replace(path=file.sha256 or "") for file in missing[begin : begin + size]]
            broken = {item.path for item in read_files(storage, group, located, incoming)}
            for file in group:
                if file.path not in broken:
                    (incoming / file.path).replace(directory / file.path)
            _delete(incoming)
        self._fetched = reference

    def _made(self) -> Path:
        if self._directory is not None and self._directory.is_dir():
            os.utime(self._directory.parent)  # which nothing else changes: it is not left over
        else:
            self._left.close()
            make_working_directory(self._working, self._private_from)
            directory = self._left.enter_context(scratch_directory(self._working)) / "files"
            directory.mkdir()
            self._directory = directory
        return self._directory


def _placed(
    place: Callable[[Path, Path], object],
    directory: Path,
    target: Path,
    told: Callable[[int], object],
    file: FileEntry,
) -> bool:
    """Have a fetched file below ``target``, and compare it with the manifest; whether it is there now."""
    if file.reference is None or file.sha256 is None:
        return False
    there = target / file.path
    try:
        place(directory / file.sha256, there)
    except OSError:
        return False
    with there.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if (there.stat().st_size, digest) != (file.size, file.sha256):
        there.unlink()
        return False
    told(file.size)
    return True


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
