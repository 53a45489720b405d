"""``dg`` on a fresh project with the component: it is listed, scaffolded, checked, and errors name the line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

_TYPE = "dagster_ckpt.CheckpointedStreamComponent"
_FILES = {
    "pyproject.toml": """
[project]
name = "shop"
version = "0.1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
""",
    "src/shop/__init__.py": "",
    "src/shop/defs/__init__.py": "",
    "src/shop/definitions.py": """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
""",
}


def dg(project: Path, *arguments: str, fails: bool = False) -> str:
    program = Path(sys.executable).with_name("dg")
    home = project / "dagster_home"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    path = os.pathsep.join([str(project / "src"), str(Path.cwd())])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
        "DAGSTER_HOME": str(home),
    }
    done = subprocess.run(
        [program, *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh project with a scaffolded component."""
    project = tmp_path_factory.mktemp("project")
    for name, text in _FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    dg(project, "scaffold", "defs", _TYPE, "turnover")
    return project


def test_what_is_scaffolded_is_listed_and_loads(project: Path) -> None:
    dg(project, "check", "defs")
    listed = json.loads(dg(project, "list", "defs", "--json"))
    assert "turnover_rollback" in json.dumps(listed)


@pytest.mark.exhaustive
def test_the_component_is_listed_and_its_yaml_is_valid(project: Path) -> None:
    assert _TYPE in dg(project, "list", "components")
    dg(project, "check", "yaml")


@pytest.mark.parametrize(
    ("good", "bad", "attribute", "reason"),
    [
        pytest.param(
            *("interval: 1 min", "interval: soon", "interval:", "'soon' is not a duration"),
            marks=pytest.mark.exhaustive,
        ),
        ("query:turnover", "query:nothing", "function:", "has no attribute 'nothing'"),
        pytest.param(*("num_retained", "num_retaind", "num_retained:", "num_retaind at"), marks=pytest.mark.exhaustive),
    ],
)
def test_an_error_names_the_line_of_the_option(project: Path, good: str, bad: str, attribute: str, reason: str) -> None:
    defs = project / "src" / "shop" / "defs" / "turnover" / "defs.yaml"
    before = defs.read_text()
    defs.write_text(before.replace(good, bad))
    try:
        told = dg(project, "check", "defs", "--no-check-yaml", fails=True)
    finally:
        defs.write_text(before)
    assert reason in told
    line = 1 + before[: before.index(attribute)].count("\n")
    assert f"turnover/defs.yaml:{line}" in told


def test_the_schema_names_a_misspelt_option_and_a_duration_without_a_unit(project: Path) -> None:
    defs = project / "src" / "shop" / "defs" / "turnover" / "defs.yaml"
    before = defs.read_text()
    defs.write_text(before.replace("num_retained", "num_retaind").replace("1 min", "soon"))
    try:
        told = dg(project, "check", "yaml", fails=True)
    finally:
        defs.write_text(before)
    assert "'num_retaind' was unexpected" in told
    assert "'soon' does not match" in told
    line = 1 + before[: before.index("interval:")].count("\n")
    assert f"defs.yaml:{line}" in told
