"""What an import loads, what a package hands out, and which old import paths still work."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import dagster_ckpt
from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.checkpoint.driver import Ledger, Pins, Run, state

ROOT = Path(dagster_ckpt.__file__).parent.parent
DOORS = sorted(
    path for path in (ROOT / "dagster_ckpt").rglob("__init__.py") if "lazy_names(" in path.read_text(encoding="utf-8")
)

#: What takes long to load, and what only a bucket or a database needs.
HEAVY = {
    "adlfs",
    "aiohttp",
    "fsspec",
    "gcsfs",
    "google.auth",
    "matplotlib",
    "numpy",
    "pandas",
    "psycopg",
    "py4j",
    "pyarrow",
    "pyspark",
    "s3fs",
}
RUN = "dagster_ckpt.spark.run"


def loaded(code: str, *names: str) -> set[str]:
    """Which of ``names`` are loaded after ``code`` in a new interpreter."""
    told = f"\nimport sys\nprint([name for name in {sorted(names)!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code + told], cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[str] = ast.literal_eval(run.stdout.splitlines()[-1])
    return set(found)


def command(*arguments: str) -> str:
    """Code that calls the command line and goes on after it."""
    return (
        "from dagster_ckpt.cli import main\n"
        f"try:\n    main({json.dumps(arguments)})\nexcept SystemExit as ended:\n    assert not ended.code, ended.code"
    )


@pytest.mark.parametrize(
    "module",
    [
        "dagster_ckpt",
        "dagster_ckpt.checkpoint",
        "dagster_ckpt.checkpoint.catalog.catalog",
        "dagster_ckpt.checkpoint.cleanup.job_sweep",
        "dagster_ckpt.checkpoint.taking.coordinator",
        "dagster_ckpt.config.configuration",
        "dagster_ckpt.config.state_backend",
        "dagster_ckpt.datastream",
        "dagster_ckpt.datastream.storage_access",
        "dagster_ckpt.errors",
        "dagster_ckpt.filesystem",
    ],
)
def test_the_core_loads_neither_dagster_nor_spark(module: str) -> None:
    assert not loaded(f"import {module}", "dagster", "rich", *HEAVY)


def test_the_package_itself_loads_nothing_but_its_door() -> None:
    assert not loaded("import dagster_ckpt", "click", "pydantic", "yaml", "dagster_ckpt.config", "dagster_ckpt.errors")


def test_help_loads_no_command() -> None:
    assert not loaded(command("--help"), "dagster", "pydantic", "rich", "dagster_ckpt.checkpoint", *HEAVY)


def test_what_keeps_drivers_running_loads_neither_dagster_nor_spark() -> None:
    assert not loaded(command("run", "--help"), "dagster", "multiprocessing", "rich", "dagster_ckpt.spark", *HEAVY)
    assert not loaded("import dagster_ckpt.cli.driver_process", "dagster", "dagster_ckpt.orchestration", *HEAVY)


def test_list_loads_what_it_reads_and_prints(tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()
    run = Run(PosixFileSystem(tmp_path / "storage"), Ledger(), Pins(tmp_path / "pins")).start()
    run.checkpoint(state(0))
    code = command("list", "--path", str(tmp_path / "storage"))
    unread = ("dagster_ckpt.checkpoint.cleanup", "dagster_ckpt.checkpoint.taking", "dagster_ckpt.spark")
    assert not loaded(code, "dagster", *unread, *HEAVY)
    assert loaded(code, "rich") == {"rich"}, "the table was not printed"
    assert not loaded(command("list", "--path", str(tmp_path / "storage"), "--json"), "rich")


def test_the_definitions_of_a_project_load_what_dagster_is_told_and_not_what_a_run_needs() -> None:
    assert loaded("import definitions", "dagster", "dagster_ckpt.orchestration", RUN, *HEAVY) == {
        "dagster",
        "dagster_ckpt.orchestration",
    }


@pytest.mark.parametrize("door", DOORS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_package_hands_out_the_same_names_to_type_checkers_and_at_run_time(door: Path) -> None:
    package = importlib.import_module(".".join(door.parent.relative_to(ROOT).parts))
    guarded = next(
        node
        for node in ast.parse(door.read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    checked = {
        name.asname or name.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for name in node.names
    }
    assert checked
    for name, module in checked.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert checked.keys() <= set(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(ImportError):
        exec(f"from {package.__name__} import no_such_name")


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        (
            "dagster_ckpt.checkpoint.storage_access",
            "dagster_ckpt.datastream.storage_access",
            [
                "REFERENCE_MAGIC_NUMBER",
                "CheckpointStorageAccess",
                "CheckpointStorageLocation",
                "CheckpointStorageLocationReference",
                "CompletedCheckpointStorageLocation",
                "create_checkpoint_directory",
                "decode_path_from_reference",
                "encode_path_as_reference",
                "get_checkpoint_directory_for_job",
                "new_savepoint_directory",
                "resolve_checkpoint_pointer",
                "savepoint_storage",
            ],
        ),
        ("dagster_ckpt.testing.gcs_server", "dagster_ckpt.testing.gcs.server", ["GcsServer"]),
        ("dagster_ckpt.filesystem", "dagster_ckpt.paths", ["local_path", "split_location"]),
    ],
)
def test_an_old_import_path_works_and_names_the_new_one(old: str, new: str, names: list[str]) -> None:
    found: dict[str, object] = {}
    for name in names:
        with pytest.warns(DeprecationWarning, match=f"^{old}.{name} has moved to {new}.{name}.$") as warned:
            exec(f"from {old} import {name}", found)
        assert found[name] is getattr(importlib.import_module(new), name)
        assert warned[0].filename == "<string>", "the warning is not at the line that imports"
    with pytest.raises(ImportError):
        exec(f"from {old} import no_such_name")
