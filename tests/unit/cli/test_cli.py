"""The command line, on a real directory of checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import fields
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from click import Context, unstyle
from click.testing import CliRunner, Result

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.checkpoint.control.heartbeat import Heart, HeartbeatFile
from dagster_ckpt.checkpoint.control.quarantine import Quarantined
from dagster_ckpt.checkpoint.control.savepoint_requests import (
    Answer,
    SavepointRequest,
    SavepointRequests,
    TakenSavepoint,
)
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.cli import looking, main, places
from dagster_ckpt.cli.printing import for_people, say_table
from dagster_ckpt.clock import SystemClock
from dagster_ckpt.config.quantities import format_size, measured_duration
from dagster_ckpt.errors import CheckpointNotFound
from dagster_ckpt.filesystem import PosixFileSystem
from dagster_ckpt.testing import Fail, FaultInjectingFileSystem, Operation
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "storage"


@pytest.fixture
def taken(storage: Path, tmp_path: Path) -> list[CheckpointMetadata]:
    (tmp_path / "pins").mkdir()
    run = Run(PosixFileSystem(storage), Ledger(), Pins(tmp_path / "pins")).start()
    return [run.checkpoint(state(step)) for step in range(11)]


def call(storage: Path, *arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, [*arguments, "--path", str(storage)])


def files(storage: Path) -> dict[str, bytes]:
    return {str(path.relative_to(storage)): path.read_bytes() for path in storage.rglob("*") if path.is_file()}


def test_help_lists_every_command_with_the_first_sentence_of_its_own_help() -> None:
    listed = CliRunner().invoke(main, ["--help"], terminal_width=300, max_content_width=300).stdout
    context = Context(main)
    width = max(map(len, main.list_commands(context)))
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        sentence, _, _ = " ".join((command.help or "").split()).partition(". ")
        assert f"  {name:<{width}}  {sentence.rstrip('.')}.\n" in listed


def test_list_tells_every_checkpoint_and_the_newest(storage: Path, taken: list[CheckpointMetadata]) -> None:
    for arguments in ([], [JOB]):
        result = call(storage, "list", *arguments, "--json")
        assert result.exit_code == 0
        rows = json.loads(result.stdout)
        assert [row["checkpoint"] for row in rows] == [item.reference for item in taken]
        assert [row["newest"] for row in rows] == [False] * 10 + [True]
        assert [row["bytes"] for row in rows] == [item.size for item in taken]
    table = call(storage, "list").stdout
    assert all(item.reference in table for item in taken)
    assert "newest" in table.splitlines()[-2]


def test_people_read_sizes_and_programs_bytes(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()
    run = Run(PosixFileSystem(storage), Ledger(), Pins(tmp_path / "pins")).start()
    taken = [run.checkpoint({"checkpoint/state/a.sst": bytes([step]) * 3_000_000}) for step in range(2)]
    shared = storage / JOB / taken[0].job_id / "shared"
    (shared / "000001-0123456789ab-left.sst").write_bytes(bytes(2_000_000))
    saved = call(storage, "savepoint", JOB, "--to", str(tmp_path / "savepoints"), "--name", "before")
    for told in (
        saved.stderr,
        call(storage, "savepoints", JOB).stdout,
        call(storage, "verify", JOB).stdout,
        call(storage, "retention", JOB, "--num-retained", "1").stdout.splitlines()[-2],
        call(storage, "sweep", JOB, "--dry-run", "--older-than", "1 ms").stdout,
    ):
        assert re.search(r"\b[0-9.]+ MiB\b", told), told
        assert not re.search(r"\b[0-9,]{4,} bytes?\b|\b[0-9],[0-9]{3}\b", told), told
    (row,) = json.loads(call(storage, "savepoints", JOB, "--json").stdout)
    assert row["bytes"] == taken[-1].size


def test_each_number_that_people_read_has_its_unit(storage: Path, taken: list[CheckpointMetadata]) -> None:
    newest = taken[-1]
    told = call(storage, "describe", JOB).stdout
    size = format_size(newest.size)
    assert re.search(rf"^bytes +({re.escape(size)}|{newest.size:,} bytes \({re.escape(size)}\))$", told, re.MULTILINE)
    for step, took in newest.timings_ms.items():
        assert re.search(rf"^timings_ms\.{step} +{re.escape(measured_duration(took))}$", told, re.MULTILINE)
    assert all(f"{format_size(file.size)}  {file.path}" in told for file in newest.files)
    row = next(line for line in call(storage, "list", JOB).stdout.splitlines() if newest.name in line)
    assert f" {size} " in row


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("timings_ms.align", 1.5, "1.5 ms"),
        ("spark.progress.batch_ms", 2614, "2.61 s"),
        ("spark.watermark_ms", 0, "1970-01-01T00:00:00"),
        ("spark.timestamp_ms", 1_790_000_000_000, "2026-09-21T"),
        ("spark.watermark_ms", -(2**63), "-9223372036854775808 ms"),
        ("spark.timestamp_ms", 2**63 - 1, "9223372036854775807 ms"),
        ("new_bytes", 12, "12 bytes"),
        ("bytes", 3 << 19, "1,572,864 bytes (1.5 MiB)"),
        ("spark.progress.rows_per_second", 1234.56789, "1,235 per second"),
        ("batch", 12345, "12345"),
    ],
)
def test_a_number_is_told_by_its_name(name: str, value: float, shown: str) -> None:
    assert for_people(name, value).startswith(shown)


def on_a_terminal(storage: Path, command: list[str], columns: int) -> list[str]:
    """The lines that a command shows on a terminal of that width."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    program = [sys.executable, "-m", "dagster_ckpt.cli", *command, "--path", str(storage)]
    without = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(program, stdin=terminal, stdout=terminal, env={**without, "TERM": "xterm"}) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # Linux says so at the end of a terminal
            while read := os.read(reader, 65536):
                shown += read
    os.close(reader)
    assert process.returncode == 0
    assert "…" not in shown.decode()
    return unstyle(shown.decode()).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
@pytest.mark.parametrize("command", [["list"], ["retention", JOB]])
def test_a_table_is_readable_on_any_terminal(
    command: list[str], columns: int, storage: Path, taken: list[CheckpointMetadata]
) -> None:
    lines = on_a_terminal(storage, command, columns)
    assert max(map(len, lines)) <= columns
    for item in taken:
        assert any(item.reference in line for line in lines), item.reference


@pytest.mark.parametrize(("rows", "is_long"), [(300, False), (301, True)])
def test_a_long_table_has_one_line_a_row(rows: int, is_long: bool, capsys: pytest.CaptureFixture[str]) -> None:
    say_table(("name", "reason"), ((str(row), "why " * 100) for row in range(rows)), whole="name")
    lines = capsys.readouterr().out.splitlines()
    assert ("┃" in lines[1]) is not is_long
    assert (max(map(len, lines)) > 200) is is_long
    assert (len(lines) == rows + 1) is is_long


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_list_of_one_job_tells_batches_on_any_terminal(
    columns: int, storage: Path, taken: list[CheckpointMetadata]
) -> None:
    *table, lineage = on_a_terminal(storage, ["list", JOB], columns)
    assert max(map(len, table)) <= columns
    heading = next(line for line in table if "checkpoint" in line)
    assert ("batch" in heading, "written" in heading) == (True, True)
    for item in taken:
        assert any(f" {item.name} " in line and f" {item.batch} " in line for line in table), item.name
    assert lineage == f"All of lineage {taken[0].job_id}."


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_savepoints_are_readable_on_any_terminal(
    columns: int, storage: Path, taken: list[CheckpointMetadata], tmp_path: Path
) -> None:
    """Also where the path alone is wider than the terminal."""
    target = tmp_path / ("deep" * 20)
    saved = call(storage, "savepoint", JOB, "--to", str(target), "--name", "before")
    assert saved.exit_code == 0
    shown = "\n".join(on_a_terminal(storage, ["savepoints", JOB], columns))
    for told in (saved.stdout.strip(), "before", "COMPLETED"):
        assert told in shown
    assert all(str(taken[-1].batch) in row for row in re.findall("batch.*", shown) if columns < 200)


@pytest.mark.parametrize("command", ["list", "savepoints", "status"])
def test_where_there_is_nothing_to_list_a_sentence_says_so(command: str, tmp_path: Path) -> None:
    filesystem, ledger = PosixFileSystem(tmp_path / "storage"), Ledger()
    (tmp_path / "pins").mkdir()
    Run(filesystem, ledger, Pins(tmp_path / "pins")).start()
    empty = {"list": tmp_path / "storage", "savepoints": tmp_path / "storage", "status": tmp_path / "nothing"}[command]
    done = call(empty, command)
    assert done.exit_code == 0
    assert "┃" not in done.stdout
    assert done.stdout.count("\n") == 1
    told = {"list": "No checkpoint", "savepoints": "No savepoint", "status": "There is no job"}[command]
    assert done.stdout.startswith(told)


def test_the_newest_is_last_after_a_change_of_lineage(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()
    filesystem, ledger, pins = PosixFileSystem(storage), Ledger(), Pins(tmp_path / "pins")
    references: list[str] = []
    for restore_from in ("latest", "latest", 0):
        named = restore_from if isinstance(restore_from, str) else references[restore_from]
        run = Run(filesystem, ledger, pins).start(named, branch=bool(references) and named == "latest")
        references += [run.checkpoint(state(step)).reference for step in range(2)]
    assert len({reference.partition("/")[0] for reference in references}) == 2
    rows = json.loads(call(storage, "list", JOB, "--json").stdout)
    assert [row["checkpoint"] for row in rows] == references
    assert rows[-1]["newest"]


def test_list_of_a_job_that_is_not_there_names_those_that_are(storage: Path, taken: list[CheckpointMetadata]) -> None:
    result = call(storage, "list", "nosuchjob", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"The jobs there: {JOB}." in result.stderr


def test_a_forgotten_path_is_told_with_the_variable_that_says_it_once() -> None:
    result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == 2
    assert "DAGSTER_CKPT_PATH" in result.stderr


@pytest.mark.parametrize("named", [["list", "--path", "gs://bucket/x"], ["dispose", "gs://bucket/x/savepoint-1"]])
def test_options_of_the_storage_on_the_command_line(named: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def open_it(path: str, *, storage_options: Any) -> Any:
        opened.append(storage_options)
        raise CheckpointNotFound("seen")

    monkeypatch.setattr(places, "open_filesystem", open_it)
    monkeypatch.setenv("DAGSTER_CKPT_STORAGE_OPTIONS", '{"token": "anon", "retries": 1}')
    given = ["--storage-option", "retries=3", "--storage-option", "endpoint_url=http://localhost:1?a=b"]
    assert CliRunner().invoke(main, [*named, *given]).exit_code == 1
    assert opened == [{"token": "anon", "retries": 3, "endpoint_url": "http://localhost:1?a=b"}]
    assert CliRunner().invoke(main, [*named, "--storage-option", "token"]).exit_code == 2


@pytest.mark.parametrize("options", ["5", "null", "[1]", '[["token", "anon"]]', '"anon"', "token=anon"])
def test_options_of_the_storage_that_are_no_object_are_told(
    options: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_CKPT_STORAGE_OPTIONS", options)
    for path in (str(storage), "gs://bucket/x"):
        done = CliRunner(catch_exceptions=False).invoke(main, ["list", "--path", path])
        assert done.exit_code == 1
        assert "DAGSTER_CKPT_STORAGE_OPTIONS is no JSON object" in done.stderr
        assert "anon" not in done.stderr, "it may be a secret"


@pytest.mark.parametrize(
    "arguments",
    [
        ["batch", "nosuchjob"],
        ["checkpoint", "nosuchjob"],
        ["describe", "nosuchjob"],
        ["diff", "nosuchjob", "chk-1"],
        ["pin", "nosuchjob", "chk-1"],
        ["preflight", "nosuchjob"],
        ["restore", "nosuchjob", "chk-1", "--dry-run"],
        ["retention", "nosuchjob"],
        ["savepoint", "nosuchjob"],
        ["savepoints", "nosuchjob"],
        ["starts", "nosuchjob"],
        ["state", "nosuchjob"],
        ["status", "nosuchjob"],
        ["stop", "nosuchjob"],
        ["verify", "nosuchjob"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_each_command_tells_of_a_job_that_is_not_there(
    arguments: list[str], storage: Path, taken: list[CheckpointMetadata]
) -> None:
    result = call(storage, *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"There is no job 'nosuchjob' in {storage}." in result.stderr
    assert f"The jobs there: {JOB}." in result.stderr


def test_a_savepoint_restores_where_its_job_is_not_known(
    storage: Path, taken: list[CheckpointMetadata], tmp_path: Path
) -> None:
    pointer = call(storage, "savepoint", JOB, "--to", str(tmp_path / "savepoints")).stdout.strip()
    (tmp_path / "empty").mkdir()
    assert json.loads(call(tmp_path / "empty", "describe", JOB, pointer, "--json").stdout)["job"] == JOB
    wrong = call(tmp_path / "empty", "describe", JOB, f"{pointer}x")
    assert wrong.exit_code == 1
    assert f"'{pointer}x'" in wrong.stderr
    assert "The jobs there: none." in wrong.stderr


def test_list_of_nothing(storage: Path) -> None:
    storage.mkdir()
    result = call(storage, "list")
    assert result.exit_code == 0
    assert "There is no job in" in result.stdout
    assert "Is --path the checkpoint path?" in result.stdout


def test_describe(storage: Path, taken: list[CheckpointMetadata]) -> None:
    for name, expected in (("latest", taken[-1]), ("chk-3", taken[2]), (taken[4].reference, taken[4])):
        document = json.loads(call(storage, "describe", JOB, name, "--json").stdout)
        assert document["checkpoint"] == expected.reference
        assert {item["path"]: item["bytes"] for item in document["stored"]} == {
            file.path: file.size for file in expected.files
        }
    shown = call(storage, "describe", JOB).stdout
    assert all(file.path in shown for file in taken[-1].files)
    assert re.search(rf"^writer\.pid +{taken[-1].writer['pid']}$", shown, re.MULTILINE), "a line for each figure"


def test_describe_what_is_not_there(storage: Path, taken: list[CheckpointMetadata]) -> None:
    result = call(storage, "describe", JOB, f"chk-{len(taken) + 1}")
    assert result.exit_code == 1
    assert "Cannot find meta data file '_metadata'" in result.stderr
    assert f"The newest is chk-{len(taken)}. " in result.stderr
    assert "The nearest" not in result.stderr
    assert "dagster-ckpt list" in result.stderr


@pytest.mark.parametrize("digits", [16, 26, 300, 5000])
@pytest.mark.parametrize("command", ["describe", "verify", "pin"])
def test_a_number_that_no_checkpoint_gets_is_told_as_it_was_asked_for(
    storage: Path, taken: list[CheckpointMetadata], command: str, digits: int
) -> None:
    asked = f"chk-{'9' * digits}"
    for named in (asked, str(storage / taken[0].job_name / taken[0].job_id / asked)):
        result = call(storage, command, JOB, named)
        assert result.exit_code == 1
        assert asked in result.stderr
        assert "chk-0" not in result.stderr


def test_the_way_back_from_a_broken_file_leads_past_the_checkpoints_that_need_it(
    storage: Path, taken: list[CheckpointMetadata]
) -> None:
    (shared,) = (file for file in taken[9].files if file.path == "checkpoint/state/4.sst")
    assert shared in taken[8].files
    assert shared not in taken[7].files
    stored = storage / JOB / taken[9].job_id / (shared.reference or "").removeprefix("../")
    damaged = bytearray(stored.read_bytes())
    damaged[shared.offset or 0] ^= 1
    stored.write_bytes(damaged)
    told = call(storage, "verify", JOB, taken[9].name)
    assert told.exit_code == 1
    (named,) = re.findall(r"restore_from: (\S+)", told.stdout)
    assert named == taken[7].reference
    assert call(storage, "verify", JOB, named).exit_code == 0


def test_verify(storage: Path, taken: list[CheckpointMetadata]) -> None:
    result = call(storage, "verify", JOB)
    assert result.exit_code == 0
    assert result.stdout.count("verified") == len(taken)
    victim = next(path for path in (storage / JOB / taken[-1].job_id / "shared").iterdir())
    damaged = bytearray(victim.read_bytes())
    damaged[0] ^= 1
    victim.write_bytes(damaged)
    users = [item for item in taken if any(name.endswith(victim.name) for name in item.references)]
    result = call(storage, "verify", JOB)
    assert result.exit_code == 1
    assert result.stdout.count("was changed") == len(users)
    assert result.stdout.count("verified") == len(taken) - len(users)
    assert call(storage, "verify", JOB, users[0].name).exit_code == 1


def test_verify_where_the_storage_fails(
    storage: Path, taken: list[CheckpointMetadata], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage that does not answer says nothing of the checkpoint; the others are verified."""
    is_failing = iter((True,))

    def plan(operation: Operation) -> Fail | None:
        return Fail() if operation.name == "checksum" and next(is_failing, False) else None

    failing = FaultInjectingFileSystem(PosixFileSystem(storage), plan)
    monkeypatch.setattr(looking, "storage_at", lambda _: failing)
    result = call(storage, "verify", JOB, "--json")
    assert result.exit_code == 8
    rows = json.loads(result.stdout)
    assert [row["verified"] for row in rows].count(None) == 1
    assert [row["verified"] for row in rows].count(True) == len(taken) - 1
    manifest = storage / JOB / taken[3].reference / "_metadata"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    is_failing = iter((True,))
    assert call(storage, "verify", JOB).exit_code == 1, "damage counts more"


def test_verify_tells_a_broken_manifest(storage: Path, taken: list[CheckpointMetadata]) -> None:
    manifest = storage / JOB / taken[3].reference / "_metadata"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    result = call(storage, "verify", JOB)
    assert result.exit_code == 1
    assert f"{taken[3].reference}/_metadata is truncated or was changed" in result.stdout


def test_retention_is_told_and_nothing_is_deleted(storage: Path, taken: list[CheckpointMetadata]) -> None:
    before = files(storage)
    options = ["--num-retained", "2", "--retain-every", "4"]
    rows = json.loads(call(storage, "retention", JOB, *options, "--json").stdout)
    assert [row["checkpoint"] for row in rows] == [item.reference for item in taken]
    assert [item.name for item, row in zip(taken, rows, strict=True) if row["keep"]] == [
        "chk-4",
        "chk-8",
        "chk-10",
        "chk-11",
    ]
    assert all((row["freed_bytes"] > 0) is not row["keep"] for row in rows), "each frees its manifest at least"
    table = call(storage, "retention", JOB, *options).stdout
    freed = sum(row["freed_bytes"] for row in rows)
    assert f"7 of 11 would be deleted, which frees {format_size(freed)}." in table
    assert "among those whose id is a multiple of 4" in table
    assert "This is for --num-retained 2." in table
    assert files(storage) == before


def test_a_pin_is_shown_and_kept_until_it_is_taken_off(storage: Path, taken: list[CheckpointMetadata]) -> None:
    pinned = call(storage, "pin", JOB, "chk-3", "--reason", "before the upgrade")
    assert pinned.exit_code == 0
    assert pinned.stdout == f"{taken[2].reference} is pinned: before the upgrade.\n"
    assert call(storage, "pin", JOB, "latest").exit_code == 0

    rows = json.loads(call(storage, "list", JOB, "--json").stdout)
    assert [row["checkpoint"] for row in rows if row["pinned"]] == [taken[2].reference, taken[-1].reference]
    assert [row["pin_reason"] for row in rows if row["pinned"]] == ["before the upgrade", ""]
    table = call(storage, "list", JOB).stdout.splitlines()
    assert "pinned" in next(line for line in table if f" {taken[2].name} " in line)
    assert "newest, pinned" in next(line for line in table if f" {taken[-1].name} " in line)

    def decided() -> dict[str, str]:
        rows = json.loads(call(storage, "retention", JOB, "--num-retained", "2", "--json").stdout)
        return {row["checkpoint"].rpartition("/")[2]: row["reason"] for row in rows if row["keep"]}

    assert decided() == {"chk-3": "pinned: before the upgrade", "chk-10": "among the 2 newest", "chk-11": "pinned"}
    gone = call(storage, "unpin", JOB, "chk-3")
    assert gone.exit_code == 0
    assert gone.stdout == f"{taken[2].reference} is not pinned any more.\n"
    assert decided() == {"chk-10": "among the 2 newest", "chk-11": "pinned"}


def test_several_reasons_are_all_told_and_taken_off_together(storage: Path, taken: list[CheckpointMetadata]) -> None:
    for reason in ("audit", "", "upgrade"):
        assert call(storage, "pin", JOB, taken[0].reference, "--reason", reason).exit_code == 0
    (row,) = [row for row in json.loads(call(storage, "list", JOB, "--json").stdout) if row["pinned"]]
    assert row["pin_reason"] == "audit; upgrade"
    assert call(storage, "unpin", JOB, "chk-1").exit_code == 0
    assert not [row for row in json.loads(call(storage, "list", JOB, "--json").stdout) if row["pinned"]]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["pin", JOB, "chk-99"], "Cannot find meta data file '_metadata'", "dagster-ckpt list"),
        (["unpin", JOB, "chk-1"], "is not pinned; pinned are: none", "Name one of the pinned"),
    ],
)
def test_what_cannot_be_pinned_or_unpinned(
    storage: Path, taken: list[CheckpointMetadata], arguments: list[str], message: str, hint: str
) -> None:
    assert taken
    result = call(storage, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert hint in result.stderr


def test_retention_with_what_cannot_be_used(storage: Path, taken: list[CheckpointMetadata]) -> None:
    assert taken
    result = call(storage, "retention", JOB, "--retain-for", "7 parsecs")
    assert result.exit_code == 2
    assert "--retain-for" in result.stderr
    assert "'7 parsecs' is not a duration" in result.stderr


def test_a_savepoint_of_a_job_that_does_not_run(storage: Path, taken: list[CheckpointMetadata], tmp_path: Path) -> None:
    before = files(storage)
    result = call(storage, "savepoint", JOB, "--to", str(tmp_path / "savepoints"))
    assert result.exit_code == 0
    savepoint = Path(result.stdout.strip())
    assert savepoint.parent == tmp_path / "savepoints"
    assert f"copying {taken[-1].reference}" in result.stderr
    assert files(storage) == before
    moved = savepoint.rename(tmp_path / "moved")
    document = json.loads(call(storage, "describe", JOB, str(moved), "--json").stdout)
    assert (document["kind"], document["batch"], document["pointer"]) == ("savepoint", taken[-1].batch, str(moved))
    verified = call(storage, "verify", JOB, str(moved))
    assert verified.exit_code == 0
    assert "verified" in verified.stdout
    assert str(moved) not in call(storage, "list", JOB).stdout


def test_a_savepoint_as_json(storage: Path, taken: list[CheckpointMetadata], tmp_path: Path) -> None:
    result = call(storage, "savepoint", JOB, "--to", str(tmp_path / "savepoints"), "--json")
    document = json.loads(result.stdout)
    assert document.keys() == {f.name for f in fields(TakenSavepoint)} | {"deleted"}
    assert (document["checkpoint_id"], document["size"]) == (11, taken[-1].size)


def test_a_savepoint_of_a_running_job(storage: Path, taken: list[CheckpointMetadata], tmp_path: Path) -> None:
    """The driver is played by a thread of this process, which is alive."""
    filesystem = PosixFileSystem(storage)
    requests = SavepointRequests(filesystem, JOB)
    heart = Heart(HeartbeatFile(filesystem, JOB), SystemClock(), epoch=1, run_id="the run")
    heart.start()
    answered: list[SavepointRequest] = []
    over = Event()

    def drive() -> None:
        while not answered and not over.wait(0.05):
            for request in requests.open():
                answered.append(request)
                savepoint = TakenSavepoint(f"{request.target}/savepoint-x", 12, 11, 7, 1234, 0.5)
                requests.answer(1, request, Answer(0.0, savepoint))

    driver = Thread(target=drive, daemon=True)
    driver.start()
    try:
        result = call(storage, "savepoint", JOB, "--to", str(tmp_path / "savepoints"), "--stop", "--timeout", "60 s")
    finally:
        over.set()
        heart.stop()
        driver.join()
    assert result.exit_code == 0
    assert result.stdout.strip() == f"{tmp_path}/savepoints/savepoint-x"
    assert "Asking run the run (epoch 1) for a savepoint to stop with." in result.stderr
    assert "Batch 11, 7 files, 1.2 KiB, in 0.5 s" in result.stderr
    assert answered[0].stop
    assert taken


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--stop"], "no run of it is alive", "dagster-ckpt savepoint"),
        (["--drain", "--stop"], "Spark cannot emit a final watermark", "Use --stop without --drain"),
        ([], "No savepoint location given and no default location configured.", "--to DIR"),
    ],
)
def test_a_savepoint_that_cannot_be(
    storage: Path, taken: list[CheckpointMetadata], options: list[str], message: str, hint: str
) -> None:
    assert taken
    result = call(storage, "savepoint", JOB, *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert hint in result.stderr


def test_dispose(storage: Path, taken: list[CheckpointMetadata], tmp_path: Path) -> None:
    for ending in ("", "/", "/_metadata"):
        pointer = call(storage, "savepoint", JOB, "--to", str(tmp_path / "savepoints")).stdout.strip()
        result = CliRunner(catch_exceptions=False).invoke(main, ["dispose", pointer + ending])
        assert result.exit_code == 0
        assert f"{pointer} is no savepoint any more." in result.stdout
        assert not Path(pointer).exists()
    again = CliRunner(catch_exceptions=False).invoke(main, ["dispose", pointer])
    assert again.exit_code == 1
    assert "no savepoint to dispose of" in again.stderr
    checkpoint = CliRunner(catch_exceptions=False).invoke(main, ["dispose", f"{storage}/{JOB}/{taken[0].reference}"])
    assert checkpoint.exit_code == 1
    assert "no savepoint: other checkpoints may need its files" in checkpoint.stderr
    assert f"`dagster-ckpt retention` shows what that of {JOB} would delete" in checkpoint.stderr
    assert call(storage, "verify", JOB).exit_code == 0


def test_dispose_names_what_stays(storage: Path, taken: list[CheckpointMetadata], tmp_path: Path) -> None:
    assert taken
    pointer = call(storage, "savepoint", JOB, "--to", str(tmp_path / "savepoints")).stdout.strip()
    (Path(pointer) / "notes.txt").write_text("of the user")
    result = CliRunner(catch_exceptions=False).invoke(main, ["dispose", pointer])
    assert result.exit_code == 0
    assert "notes.txt" in result.stderr
    assert [path.name for path in Path(pointer).iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("command", ["list", "describe", "verify", "retention", "pin", "unpin", "savepoint", "dispose"])
def test_each_command_has_help(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert command == "dispose" or "--path" in result.stdout
    assert command in CliRunner().invoke(main, ["--help"]).stdout


def test_what_is_in_quarantine_is_listed_with_the_reason_and_can_be_disposed_of(
    storage: Path, taken: list[CheckpointMetadata]
) -> None:
    catalog = CheckpointCatalog(PosixFileSystem(storage), JOB)
    *_, last, newest = taken
    for item, reason in ((last, "A file is gone."), (newest, "Its manifest was changed.")):
        catalog.records.quarantine.add(Quarantined(item.reference, reason, 1, "run", "host", "then"))
    manifest = storage / JOB / newest.reference / "_metadata"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    result = call(storage, "list", JOB, "--json")
    rows = {row["checkpoint"]: row for row in json.loads(result.stdout)}
    assert [name for name, row in rows.items() if row["newest"]] == [taken[-3].reference]
    assert [name for name, row in rows.items() if row["quarantined"]] == [last.reference, newest.reference]
    assert (rows[newest.reference]["quarantine_reason"], rows[newest.reference]["batch"]) == (
        "Its manifest was changed.",
        None,
    )
    assert f"{last.reference} is in quarantine: A file is gone." in call(storage, "list").stdout
    decided = call(storage, "retention", JOB, "--num-retained", "1", "--json")
    assert [row["checkpoint"] for row in json.loads(decided.stdout)] == [item.reference for item in taken[:-2]]
    assert last.reference in decided.stderr

    asked = CliRunner(catch_exceptions=False).invoke(main, ["dispose", str(manifest)])
    assert "Job flights is not over" in asked.stdout
    assert manifest.exists()
    catalog.records.epochs.record_end(1, End("FINISHED", "done", discarded=False, ended_at="now"))
    for item in (last, newest):
        gone = CliRunner(catch_exceptions=False).invoke(main, ["dispose", str(storage / JOB / item.reference)])
        assert gone.stdout == f"{storage / JOB / item.reference} is deleted.\n"
        assert not (storage / JOB / item.reference).exists()
    assert call(storage, "verify", JOB).exit_code == 0
    assert not catalog.records.quarantine.names()


def test_sweep_tells_first_and_then_deletes_what_nothing_needs(
    storage: Path, taken: list[CheckpointMetadata], tmp_path: Path
) -> None:
    refused = call(storage, "sweep", JOB)
    assert refused.exit_code == 1
    assert f"Job '{JOB}' is not over" in refused.stderr
    assert f"dagster-ckpt sweep {JOB} --older-than" in refused.stderr
    assert json.loads(call(storage, "sweep", "--json").stdout)[0]["job"] == JOB, "of every job: told, and no error"
    CheckpointCatalog(PosixFileSystem(storage), JOB).records.epochs.record_end(1, End("FINISHED", "", False, "now"))
    orphan = storage / JOB / taken[0].job_id / "shared" / "000001-0123456789ab-left.sst"
    orphan.write_bytes(b"12345")
    before = files(storage)
    (document,) = json.loads(call(storage, "sweep", JOB, "--dry-run", "--json").stdout)
    name = str(orphan.relative_to(storage))
    assert document["files"] == [{"path": name, "bytes": 5, "reason": "no checkpoint needs it"}]
    assert (document["count"], document["bytes"], document["dry_run"]) == (1, 5, True)
    told = call(storage, "sweep", "--dry-run").stdout
    assert f"{name}  (no checkpoint needs it)" in told
    assert f"{JOB}: 1 file, 5 bytes would be deleted." in told
    assert files(storage) == before
    swept = call(storage, "sweep", JOB).stdout
    assert f"{name}  (no checkpoint needs it)" in swept
    assert f"{JOB}: 1 file, 5 bytes deleted." in swept
    assert before.keys() - files(storage).keys() == {name}
    assert call(storage, "verify", JOB).exit_code == 0


def test_sweep_refuses_what_is_no_age(storage: Path, taken: list[CheckpointMetadata]) -> None:
    result = call(storage, "sweep", JOB, "--older-than", "soon")
    assert result.exit_code == 2
    assert "'--older-than': 'soon' is not a duration" in result.stderr
