"""What each minor release of Spark reads and writes: the one table of everything that differs.

Spark reads what older releases wrote, and some formats of a newer release are unknown to an older one. So a job may
move to a newer release at any restart, and a checkpoint is refused by an older one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from dagster_ckpt.errors import InvalidConfiguration, RestoreRefused, UnsupportedSpark

__all__ = [
    "EVERY_FORMAT",
    "RELEASES",
    "Formats",
    "Release",
    "minor_of",
    "newest_version",
    "oldest_writer",
    "refuse_unknown_options",
    "release_of",
]

_MINOR = re.compile(r"(\d{1,4})\.(\d{1,4})")
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb."


@dataclass(frozen=True, slots=True)
class Formats:
    """Versions of Spark's own files in a checkpointLocation that a release reads.

    Attributes:
        offset_log: of ``offsets/N``; version 2 names each source.
        commit_log: of ``commits/N``; version 2 has the ids of the state, version 3 tells of the sink.
        operator: of ``state/<operator>/_metadata``.
        changelog: of changelogs that name the versions they build on.
        state: of the state's files; version 2 never overwrites a file. Spark 4.0 has a version 2 that depends on what
            its JVM did first, and that another JVM or another release may not read; so 4.0 has version 1 only.
    """

    offset_log: Collection[int]
    commit_log: Collection[int]
    operator: Collection[int] = (1, 2)
    changelog: Collection[str] = ("v3", "v4")
    state: Collection[int] = (1, 2)


@dataclass(frozen=True, slots=True)
class Release:
    """One minor release of Spark.

    Attributes:
        minor: the release, such as ``(4, 1)``.
        formats: what the release reads.
        commit_log_is_state_format: whether a session reads and writes ``commits/N`` in the version of its state format,
            also without state. Such a session cannot read the log of a session with a higher state format.
        writer_options_are_hadoops: whether the options of a file sink's writer become settings of Hadoop.
        file_checksums: the state formats whose files have a checksum file beside them.
        row_checksums: whether the rows in state files may have checksums.
        named_sources: whether sources may have names of the user's, which the logs then have.
        real_time: whether Python has the real-time trigger.
        repartitions_state: whether Spark repartitions the state of a stopped query.
        rocksdb_options: the options of RocksDB that no older release has.
        offset_confs: the settings in entries of ``offsets/`` that no older release writes there.
    """

    minor: tuple[int, int]
    formats: Formats
    commit_log_is_state_format: bool = False
    writer_options_are_hadoops: bool = True
    file_checksums: Collection[int] = (2,)
    row_checksums: bool = True
    named_sources: bool = True
    real_time: bool = True
    repartitions_state: bool = True
    rocksdb_options: Collection[str] = ()
    offset_confs: Collection[str] = ()

    @property
    def name(self) -> str:
        """The release as people write it, such as ``4.1``."""
        return "{}.{}".format(*self.minor)

    def session_format(self, state_format: int | None, commit_log: int | None) -> int:
        """The state format that the session of a restored query must have.

        Args:
            state_format: of the query's state, ``None`` for a query without state.
            commit_log: the version of the query's commit log, if known.
        """
        own = state_format or 1
        return max(own, commit_log or 1) if self.commit_log_is_state_format else own

    def refuse_newer(self, offset_logs: Collection[int], commit_logs: Collection[int], what: str) -> None:
        """Refuse logs of versions that this release does not read.

        Args:
            offset_logs: the versions of the entries in ``offsets/``.
            commit_logs: the versions of the entries in ``commits/``.
            what: what has the logs, for the error.

        Raises:
            RestoreRefused: a version is of a newer release.
        """
        for log, found, read in (
            ("offsets/", offset_logs, self.formats.offset_log),
            ("commits/", commit_logs, self.formats.commit_log),
        ):
            if newer := [version for version in found if version not in read]:
                raise RestoreRefused(
                    f"{what} has {log} of version {max(newer)}, and Spark {self.name} reads up to {max(read)}.",
                    hint="Run the job with the Spark that wrote it, or restore another checkpoint.",
                )


_4_1 = Release(
    (4, 1),
    Formats(offset_log=(1,), commit_log=(1, 2)),
    commit_log_is_state_format=True,
    writer_options_are_hadoops=False,
    file_checksums=(1, 2),
    row_checksums=False,
    named_sources=False,
    real_time=False,
    repartitions_state=False,
    rocksdb_options=("memoryUpdateIntervalMs", "verifyNonEmptyFilesInZip"),
)
_4_2 = Release(
    (4, 2),
    Formats(offset_log=(1, 2), commit_log=(1, 2, 3)),
    rocksdb_options=("checkStaleReusedFilesInSnapshot", "mergeOperatorVersion"),
    offset_confs=(
        "spark.sql.function.protobufExtensions.enabled",
        "spark.sql.streaming.queryEvolution.enableSourceEvolution",
        "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion",
        "spark.sql.streaming.stateStore.rowChecksum.enabled",
    ),
)
#: The supported releases, from the oldest on. Compared with Spark itself by `make test-spark`.
RELEASES = (
    replace(
        _4_1,
        minor=(4, 0),
        formats=Formats(offset_log=(1,), commit_log=(1, 2), state=(1,)),
        file_checksums=(),
        rocksdb_options=(),
    ),
    _4_1,
    _4_2,
    replace(
        _4_2,
        minor=(4, 3),
        rocksdb_options=(),
        offset_confs=(
            "spark.sql.dropDuplicates.deterministicKeyOrder.enabled",
            "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled",
        ),
    ),
)
#: What the newest release reads, and with it every format there is.
EVERY_FORMAT = RELEASES[-1].formats
#: Where each option of RocksDB began, for those that the oldest release does not have.
_OPTION_SINCE: Mapping[str, Release] = {
    f"{_ROCKSDB}{option}": release for release in RELEASES for option in release.rocksdb_options
}


def release_of(version: str) -> Release:
    """The release of a version of Spark.

    Args:
        version: as Spark tells it, such as ``4.1.3``.

    Raises:
        UnsupportedSpark: this package does not know the release.
    """
    minor = minor_of(version)
    for release in RELEASES:
        if release.minor == minor:
            return release
    oldest, newest = RELEASES[0], RELEASES[-1]
    hint = f'Install a Spark from {oldest.name} to {newest.name}, such as `pip install "pyspark=={newest.name}.*"`.'
    if minor is not None and minor > newest.minor:
        hint += " A newer release of dagster-ckpt may know this Spark."
    raise UnsupportedSpark(
        f"This is Spark {version}, and dagster-ckpt works with Spark {oldest.name} to {newest.name}.", hint=hint
    )


def minor_of(version: str) -> tuple[int, int] | None:
    """The minor release of a version, ``None`` for what is no version."""
    match = _MINOR.match(version)
    return None if match is None else (int(match[1]), int(match[2]))


def newest_version(versions: Iterable[str | None]) -> str | None:
    """The version of the newest minor release, ``None`` if none is known."""
    known = {version: minor for version in versions if version is not None and (minor := minor_of(version))}
    return max(known, key=known.__getitem__, default=None)


def oldest_writer(offset_confs: Collection[str], commit_log: int | None, state_format: int | None) -> str:
    """The oldest release that writes such a checkpointLocation, which does not tell its Spark; such as ``4.2``.

    Args:
        offset_confs: the settings in the newest entry of ``offsets/``.
        commit_log: the version of ``commits/``, if known.
        state_format: of the state, ``None`` for a query without state.
    """
    oldest = RELEASES[0]
    for release in RELEASES:
        older = RELEASES[: RELEASES.index(release)]
        reads = {(format_, log) for each in older for format_ in each.formats.state for log in each.formats.commit_log}
        is_new = older and (state_format or 1, commit_log or 1) not in reads
        if is_new or not set(release.offset_confs).isdisjoint(offset_confs):
            oldest = release
    return oldest.name


def refuse_unknown_options(settings: Mapping[str, str], release: Release) -> None:
    """Refuse options of RocksDB that ``release`` would ignore.

    Args:
        settings: of a query's session.
        release: the running release.

    Raises:
        InvalidConfiguration: an option came with a newer release.
    """
    for key in settings:
        since = _OPTION_SINCE.get(key)
        if since is not None and since.minor > release.minor:
            raise InvalidConfiguration(
                f"The state backend cannot be used: Spark {release.name} has no RocksDB option "
                f"{key.removeprefix(_ROCKSDB)!r}, and would ignore it.",
                hint=f"Leave the option out, or run the job with Spark {since.name} or later.",
            )
