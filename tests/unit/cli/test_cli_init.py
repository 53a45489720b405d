"""``dagster-ckpt init``: what it writes runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from dagster_ckpt.cli import main
from dagster_ckpt.cli.init import INSTANCE

_ROOT = Path(__file__).resolve().parents[3]


def _init(directory: Path) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, ["init", str(directory)])


def test_the_project_runs(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    done = _init(tmp_path / "shop")
    assert done.exit_code == 0
    path = tmp_path / "shop" / "definitions.py"
    assert f"dev --log-level warning -f {path}" in done.stdout
    exported = dict(line.split("=", 1) for line in done.stdout.splitlines() if "DAGSTER_CKPT_PATH" in line)
    assert exported == {"  export DAGSTER_CKPT_PATH": str(tmp_path / "shop" / "data" / "checkpoints")}
    code = path.read_text()
    ends = '.outputMode("append")'
    assert code.count(ends) == 1
    namespace = {"__file__": str(path), "__name__": "definitions"}
    exec(compile(code.replace(ends, f"{ends}.trigger(availableNow=True)"), path, "exec"), namespace)  # as a schedule
    definitions: dg.Definitions = namespace["defs"]  # type: ignore[assignment]
    dg.Definitions.validate_loadable(definitions)
    monkeypatch.setattr("dagster_ckpt.spark.start_session", lambda *_, **__: spark)  # there can be one in a process
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            assert dg.materialize([namespace["orders"]], instance=instance).success  # type: ignore[list-item]
        job = definitions.resolve_job_def("turnover_job")
        assert job.execute_in_process(instance=instance).success
        (told,) = instance.fetch_materializations(dg.AssetKey("turnover_checkpoints"), limit=9).records[:1]
    assert told.asset_materialization is not None
    rows = spark.read.parquet(str(tmp_path / "shop" / "data" / "turnover")).collect()
    assert sorted((row["shop"], row["cents"]) for row in rows) == [("north", 2450), ("south", 2500)]


def test_the_instance_is_that_of_the_repository(tmp_path: Path) -> None:
    _init(tmp_path / "shop")
    written = (tmp_path / "shop" / "dagster_home" / "dagster.yaml").read_text()
    assert yaml.safe_load(written) == yaml.safe_load((_ROOT / "dagster.yaml").read_text())
    assert written == INSTANCE


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "dagster_home").mkdir()
    (tmp_path / "dagster_home" / "dagster.yaml").write_text("mine")
    refused = _init(tmp_path)
    assert refused.exit_code == 1
    assert "Nothing was written" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["dagster_home"]
    assert (tmp_path / "dagster_home" / "dagster.yaml").read_text() == "mine"


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_pages_start_dagster_as_the_command_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = _init(Path("shop")).output
    pattern = r"^DAGSTER_HOME=\$PWD/(\S+) dagster (dev .*-f (\S+))$"
    (line,) = re.findall(pattern, (_ROOT / page).read_text(), re.MULTILINE)
    assert (tmp_path / line[0] / "dagster.yaml").exists()
    assert (tmp_path / line[2]).exists()
    assert f"DAGSTER_HOME={tmp_path / line[0]} " in told
    assert line[1] in told
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert "[ui]" in (_ROOT / page).read_text()
    assert any("dagster-webserver" in needed for needed in project["optional-dependencies"]["ui"])
