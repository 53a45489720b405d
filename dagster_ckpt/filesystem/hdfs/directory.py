"""A directory of HDFS: its name, its cluster, and how requests to the cluster are made and fail."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, TypeVar

from dagster_ckpt.errors import InvalidConfiguration, StorageError
from dagster_ckpt.filesystem.hdfs.hadoop_jvm import Hadoop, JavaFailure, hadoop_of_this_process
from dagster_ckpt.filesystem.hdfs.hdfs_errors import explained
from dagster_ckpt.shown_text import redacted, shown_cause

__all__ = ["HdfsDirectory"]

_AUTHORITY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_PREFIXES = ("dfs.", "fs.", "hadoop.", "io.", "ipc.")

_Result = TypeVar("_Result")


class HdfsDirectory:
    """A directory of HDFS.

    Args:
        authority: ``host:port`` of the NameNode, a nameservice, or nothing for the default file system of Hadoop's
            configuration.
        directory: the directory, absolute.
        options: keys of Hadoop's configuration, which override its files.

    Attributes:
        made_of: the arguments, as they were checked.
        cluster: URL of the cluster.
        url: URL of the directory.

    Raises:
        InvalidConfiguration: the authority is impossible, the directory is the root, or an option is not Hadoop's.
    """

    def __init__(self, authority: str, directory: str, options: Mapping[str, Any]) -> None:
        if authority and not _AUTHORITY.fullmatch(authority):
            raise InvalidConfiguration(
                f"{authority!r} is neither host:port of a NameNode nor a nameservice.",
                hint="Write the checkpoint path as hdfs://namenode:8020/directory.",
            )
        if not PurePosixPath(directory).is_absolute() or directory == "/":
            raise InvalidConfiguration(
                f"hdfs://{authority} names no directory"
                + (f", and takes {authority!r} for a NameNode." if authority else "."),
                hint="Write the checkpoint path as hdfs://namenode:8020/directory.",
            )
        self.made_of = (authority, str(PurePosixPath(directory)), _checked(options))
        self.cluster = f"hdfs://{authority}"
        self.url = f"{self.cluster}{self.made_of[1]}"

    def file(self, path: str) -> str:
        """The URL of a file below the directory.

        Raises:
            StorageError: ``path`` is not below the directory.
        """
        if not path or path == ".":
            raise StorageError(f"{path!r} is not a path below {self.url}.")
        return self.below(path)

    def below(self, path: str) -> str:
        """The URL of the directory itself or of what is below the directory; raises as :meth:`file`."""
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts:
            raise StorageError(f"{path!r} is not a path below {self.url}.")
        return f"{self.url}/{relative}" if relative.parts else self.url

    def temporary(self, path: str) -> str:
        """The URL of a new temporary file beside a file; raises as :meth:`file`."""
        above, _, name = self.file(path).rpartition("/")
        return f"{above}/.{name}.{uuid.uuid4().hex}.tmp"

    def call(self, work: Callable[[Hadoop], _Result], *, moves_bytes: bool = False) -> _Result:
        """Do work that may be done twice: the first request after a NameNode's restart fails on the old connection.

        Args:
            work: as for :meth:`call_once`.
            moves_bytes: as for :meth:`call_once`.

        Raises:
            JavaFailure: the client failed.
        """
        try:
            return self.call_once(work, moves_bytes=moves_bytes)
        except JavaFailure as failure:
            if "EOFException" not in failure.names:
                raise
            return self.call_once(work, moves_bytes=moves_bytes)

    def call_once(self, work: Callable[[Hadoop], _Result], *, moves_bytes: bool = False) -> _Result:
        """Do work on a thread of the JVM of Hadoop's client, and wait for the result.

        Args:
            work: asks the client.
            moves_bytes: ``work`` moves the bytes of a file, and may take long.

        Raises:
            JavaFailure: the client failed.
        """
        client = hadoop_of_this_process(self.cluster, self.made_of[2])
        do = client.carry if moves_bytes else client.call
        return do(lambda: work(client))

    @contextlib.contextmanager
    def errors(self, what: str, *, a_new_file: bool = False) -> Iterator[None]:
        """Add the operation and a hint to Java's errors; a missing file stays ``FileNotFoundError``."""
        try:
            yield
        except JavaFailure as failure:
            # A file that is missing during its own write was deleted meanwhile.
            if "FileNotFoundException" in failure.names and not a_new_file:
                raise FileNotFoundError(redacted(failure.message)) from shown_cause(failure)
            raise explained(what, failure) from shown_cause(failure)
        except (FileNotFoundError, StorageError):
            raise
        except OSError as error:  # of a local file
            raise StorageError(f"Could not {what}: {error.strerror or error}") from error


def _checked(options: Mapping[str, Any]) -> dict[str, str]:
    for key, value in options.items():
        if not key.startswith(_PREFIXES) or not isinstance(value, str | int):
            raise InvalidConfiguration(
                f"hdfs:// does not take the storage option {key!r}: its options are keys of Hadoop's configuration.",
                hint=f'Keys begin with {", ".join(_PREFIXES)}; for example {{"dfs.replication": "2"}}.',
            )
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
