"""What holds of every command of the command line."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.checkpoint.control.job_records import JobRecords
from dagster_ckpt.cli import main
from dagster_ckpt.cli.places import DURATION
from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.helpers.orchestration.stored_job import StoredJob, run_id

_CONTEXT = click.Context(main, **main.context_settings)
_COMMANDS = {name: command for name in main.list_commands(_CONTEXT) if (command := main.get_command(_CONTEXT, name))}
#: A job without checkpoints, and the arguments of a call of each command that has something to say.
_EMPTY = "empty"
_CALLS: dict[str, list[str]] = {
    "batch": [JOB],
    "cancel": [JOB],
    "checkpoint": [JOB],
    "compare": [JOB, JOB],
    "describe": [JOB],
    "diff": [JOB, "chk-1"],
    "dispose": ["{tmp}/nothing"],
    "drill": ["no_such_module:job"],
    "export": [JOB, "--to", "{tmp}/exported"],
    "init": ["{tmp}/project"],
    "list": [],
    "pin": [JOB, "latest"],
    "preflight": [JOB],
    "report": [JOB, "--to", "{tmp}/report.html"],
    "restore": [JOB, "chk-1", "--dry-run"],
    "retention": [JOB],
    "run": ["no_such_module:job"],
    "savepoint": [JOB, "--to", "{tmp}/savepoints"],
    "savepoints": [],
    "starts": [JOB],
    "state": [JOB],
    "status": [],
    "stop": [JOB],
    "sweep": [],
    "unpin": [JOB, "chk-2"],
    "verify": [JOB],
}
#: Calls that are refused: of a job without checkpoints, and with what is not there.
_REFUSED: list[list[str]] = [
    *([name, _EMPTY] for name in ("batch", "cancel", "checkpoint", "describe", "state", "stop", "sweep")),
    ["compare", _EMPTY, _EMPTY],
    ["diff", _EMPTY, "latest"],
    ["export", _EMPTY, "--to", "{tmp}/exported"],
    ["export", JOB, "--to", "{tmp}/exported"],
    ["pin", _EMPTY, "latest"],
    ["unpin", _EMPTY, "latest"],
    ["unpin", JOB, "chk-1"],
    ["savepoint", JOB, "--to", "/etc/passwd"],
    ["savepoint", JOB, "--to", "/proc/x"],
    ["dispose", ""],
    ["dispose", "savepoint:a"],
    ["init", "/etc/passwd"],
    ["report", JOB, "--to", ""],
    ["batch", JOB, "99"],
    ["state", JOB, "--operator", "7"],
    *(
        [name, "nosuch", *rest]
        for name, rest in (
            *(
                (name, ())
                for name in ("batch", "describe", "list", "retention", "savepoints", "starts", "status", "sweep")
            ),
            *((name, ("latest",)) for name in ("describe", "diff", "pin", "unpin", "preflight", "state", "verify")),
        )
    ),
]


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    filesystem = PosixFileSystem(tmp_path / "storage")
    (tmp_path / "pins").mkdir()
    run = Run(filesystem, Ledger(), Pins(tmp_path / "pins")).start()
    for step in range(3):
        run.checkpoint(state(step))
    StoredJob(tmp_path / "storage", _EMPTY).claim(run_id())
    return tmp_path / "storage"


def arguments(storage: Path, call: list[str], *more: str) -> list[str]:
    command = _COMMANDS[call[0]]
    has_path = any(option.name == "path" for option in command.params)
    given = [item.format(tmp=storage.parent) for item in call]
    return [*given, *(("--path", str(storage)) if has_path else ()), *more]


def test_no_command_is_forgotten() -> None:
    assert set(_CALLS) == set(_COMMANDS)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", sorted(set(_COMMANDS) - {"run"}))
def test_a_full_disk_behind_stdout_is_told(
    name: str, as_json: bool, storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = arguments(storage, [name, *_CALLS[name]], *(("--json",) if as_json else ()))
    if name == "unpin":
        CliRunner().invoke(main, arguments(storage, ["pin", *_CALLS[name]]))
    says = CliRunner().invoke(main, arguments(storage, ["init", "{tmp}/other"]) if name == "init" else given).stdout
    if name in {"init", "unpin"}:
        assert CliRunner().invoke(main, arguments(storage, ["pin", JOB, "chk-2"])).exit_code == 0
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            main.main(given, prog_name="dagster-ckpt")
        monkeypatch.undo()
    assert ended.value.code != 0 or not says
    if says:
        assert ended.value.code == 1
        assert "The output cannot be written: No space left on device." in capfd.readouterr().err


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_every_command_has_json(name: str) -> None:
    assert "--json" in [text for option in _COMMANDS[name].params for text in option.opts]


@pytest.mark.parametrize("call", [[name] for name in ("list", "savepoints", "status", "sweep")], ids=str)
@pytest.mark.parametrize("which", ["storage", "nothing"])
def test_the_exit_status_is_the_same_with_json_which_is_valid(call: list[str], which: str, storage: Path) -> None:
    place = storage if which == "storage" else storage.parent / "nothing"
    plain, as_json = (CliRunner().invoke(main, arguments(place, call, *more)) for more in ((), ("--json",)))
    assert plain.exit_code == as_json.exit_code
    assert isinstance(json.loads(as_json.stdout), list)
    assert plain.stdout or plain.stderr


@pytest.mark.parametrize("name", ["batch", "describe", "diff", "preflight", "retention", "starts", "state", "verify"])
@pytest.mark.parametrize("job", [JOB, _EMPTY])
def test_what_is_told_of_a_job_has_one_exit_status(name: str, job: str, storage: Path) -> None:
    call = [name, job, *_CALLS[name][1:]]
    plain, as_json = (CliRunner().invoke(main, arguments(storage, call, *more)) for more in ((), ("--json",)))
    assert plain.exit_code == as_json.exit_code
    if as_json.stdout:
        json.loads(as_json.stdout)


def test_a_job_without_anything_is_an_empty_list_and_one_that_is_not_there_is_refused(storage: Path) -> None:
    JobRecords(PosixFileSystem(storage), _EMPTY).epochs.record_end(1, End("FINISHED", "", discarded=False, ended_at=""))
    empty: dict[str, Callable[[Any], bool]] = {
        **dict.fromkeys(("list", "retention", "savepoints", "starts"), lambda told: told == []),
        "report": lambda told: told["checkpoints"] == [] and told["job_name"] == _EMPTY,
        "status": lambda told: [(row["job"], row["checkpoint"]) for row in told] == [(_EMPTY, None)],
        "sweep": lambda told: [(row["job"], row["files"]) for row in told] == [(_EMPTY, [])],
    }
    for name, is_empty in empty.items():
        to = ["--to", str(storage.parent / "page.html")] if name == "report" else []
        plain, as_json = (
            CliRunner().invoke(main, arguments(storage, [name, _EMPTY], *more)) for more in (to, ["--json"])
        )
        assert (plain.exit_code, plain.stderr) == (as_json.exit_code, as_json.stderr) == (0, ""), name
        assert plain.stdout.strip(), name
        assert is_empty(json.loads(as_json.stdout)), as_json.stdout
        for more in (to, ["--json"]):
            unknown = CliRunner().invoke(main, arguments(storage, [name, "nosuch"], *more))
            assert (unknown.exit_code, unknown.stdout) == (1, ""), name
            assert "There is no job 'nosuch'" in unknown.stderr
    verified = CliRunner().invoke(main, arguments(storage, ["verify", _EMPTY], "--json"))
    assert (verified.exit_code, json.loads(verified.stdout)) == (1, []), "nothing is there to go on from"


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_every_command_tells_how_to_call_it(name: str, flag: str) -> None:
    told = CliRunner().invoke(main, [name, flag])
    assert (told.exit_code, told.stderr) == (0, "")
    assert told.stdout.startswith(f"Usage: main {name} ")


def _empty(storage: Path) -> None:
    for job in storage.iterdir():
        shutil.rmtree(job)


def _overwrite(storage: Path, pattern: str) -> None:
    for file in [*(storage / JOB).glob(pattern)]:
        file.write_bytes(b'{"a": \x00')


def _loop(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to(directory)


#: What may be in the place of a storage, or of something in a storage, and how it comes to be there.
_STRANGE: dict[str, Callable[[Path], object]] = {
    "nothing": shutil.rmtree,
    "an empty directory": _empty,
    "a file": lambda storage: storage.rename(storage.with_name("elsewhere")).with_name("storage").touch(),
    "a loop": _loop,
    "a directory of another program": lambda storage: (storage / JOB / "control").rename(storage / JOB / "x y\n"),
    "records that are no records": lambda storage: _overwrite(storage, "control/epochs/*"),
    "manifests that are no manifests": lambda storage: _overwrite(storage, "*/chk-*/_metadata"),
    "records that cannot be listed": lambda storage: _loop(storage / JOB / "control" / "epochs"),
}


@pytest.mark.parametrize("strange", _STRANGE)
def test_what_is_wrong_is_told_in_words_with_a_next_step(
    strange: str, storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No traceback; one exit status with --json and without; JSON that is valid; commands that can be called."""
    _STRANGE[strange](storage)
    for name in sorted(set(_COMMANDS) - {"run"}):
        _tells(storage, [name, *_CALLS[name]], monkeypatch, capfd)


def _tells(storage: Path, call: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    as_json = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, call, "--json"))
    if as_json.stdout:
        json.loads(as_json.stdout)
    elif as_json.exit_code == 0:
        raise AssertionError("a command that is done prints its document")
    capfd.readouterr()
    if call[0] == "init":  # which has made its project
        return
    done = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, call))
    told = done.stderr + capfd.readouterr().err
    assert done.exit_code == as_json.exit_code
    assert done.exit_code in {0, 1, 3, 4, 5, 8, 9}
    assert done.stdout or told
    if done.exit_code == 1 and not done.stdout:
        assert len(told.splitlines()) >= 2, f"the reason and the next step: {told}"
    monkeypatch.setenv("DAGSTER_CKPT_PATH", str(storage))  # of a command that is told without
    for named in re.findall(r"`dagster-ckpt ([^`]+)`", told + done.stdout):
        first, *words = shlex.split(named)
        if {"-h", "--help"} & {*words}:
            assert first in _COMMANDS
        elif words or first in {"list", "status", "savepoints", "sweep"}:  # else only its name is told
            _COMMANDS[first].make_context(first, words, _CONTEXT)
    monkeypatch.delenv("DAGSTER_CKPT_PATH")


@pytest.mark.parametrize("name", ["list", "savepoints", "status", "sweep"])
def test_a_job_that_this_user_may_not_read_hides_no_other(
    name: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs in a directory may belong to several users. Root may read all, so the call is refused."""
    CliRunner().invoke(main, arguments(storage, ["savepoint", JOB, "--to", "{tmp}/savepoints", "--name", "a"]))
    scandir = os.scandir

    def closed(path: Any) -> Any:
        if storage / _EMPTY in [path, *Path(path).parents]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    done = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, [name, "--json"]))
    shown = {row["job"]: row for row in json.loads(done.stdout)}
    assert JOB in shown
    if name == "status":
        assert (done.exit_code, shown[_EMPTY]["state"]) == (5, "UNREADABLE")
        assert "Permission denied. Let this user read" in shown[_EMPTY]["reason"]
    else:
        assert (done.exit_code, _EMPTY in shown) == (1, False)
        said = "could not be swept whole" if name == "sweep" else "is left out"
        assert f"Job {_EMPTY!r} {said}: Could not" in done.stderr
    alone = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, [name, _EMPTY]))
    if name == "status":
        assert (alone.exit_code, "UNREADABLE" in alone.stdout) == (5, True)
    else:
        assert (alone.exit_code, alone.stdout) == (1, "")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_job_that_began_elsewhere_is_listed_where_that_cannot_be_read(
    code: int, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A savepoint in a bucket, say, whose key this shell does not have."""
    job = StoredJob(storage, "elsewhere")
    store = job.choose(job.claim(run_id()))
    own, savepoint = job.checkpoint(store, 1), job.savepoint(store, 2)
    job.choose(job.claim(run_id()), savepoint)
    os_open = os.open

    def away(path: Any, *options: Any) -> int:
        if storage.parent / "savepoints" in Path(path).parents:
            raise OSError(code, os.strerror(code), str(path))
        return os_open(path, *options)

    monkeypatch.setattr(os, "open", away)
    done = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, ["list", "--json"]))
    shown = [row["checkpoint"] for row in json.loads(done.stdout)]
    assert (done.exit_code, own.reference in shown, len(shown)) == (0, True, 4)
    assert os.strerror(code) in done.stderr
    assert "left out" not in done.stderr


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("step", ["unlink", "rmdir"])
def test_what_a_sweep_has_deleted_is_told_if_it_may_not_delete_the_rest(
    step: str, storage: Path, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    job = StoredJob(storage, JOB)
    job.end(job.claim(run_id()), "FINISHED")
    lineage = next(storage.glob(f"{JOB}/*/shared"))
    left = {lineage / f"00000{number}-0123456789ab-left.sst" for number in (1, 2)}
    for file in left:
        file.touch()
    (lineage / "empty").mkdir()
    real = getattr(Path, step)

    def closed(path: Path, **options: Any) -> None:
        if step == "rmdir" or (path in left and sum(map(Path.exists, left)) == 1):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        real(path, **options)

    monkeypatch.setattr(Path, step, closed)
    call = ["sweep", JOB, "--json"] if alone else ["sweep", "--json"]
    done = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, call))
    monkeypatch.undo()
    (told,) = [row for row in json.loads(done.stdout) if row["job"] == JOB]
    deleted = {storage / file["path"] for file in told["files"]}
    assert (done.exit_code, deleted) == (1, {file for file in left if not file.exists()})
    assert len(deleted) == (1 if step == "unlink" else 2)
    assert (f"Job {JOB!r} could not be swept whole: Could not delete" in done.stderr) is not alone
    assert "left out" not in done.stderr
    assert "\n\n" not in done.stderr, "a hint is told only if there is one"
    assert "Let this user" in done.stderr


def test_what_to_do_in_dagster_is_told_of_a_job_that_the_storage_does_not_know(storage: Path) -> None:
    call = ["restore", "nosuch", "chk-1", "--dagster-url", "http://127.0.0.1:1"]
    done = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, call))
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"Start it, or name another one with --dagster-url. There is no job 'nosuch' in {storage}." in done.stderr


def test_how_a_running_job_is_ended_is_told_with_dagster_and_without(storage: Path) -> None:
    job = StoredJob(storage, "running")
    claim = job.claim(run_id())
    job.checkpoint(job.choose(claim), 1)
    job.beat(claim, alive=True)
    done = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, ["preflight", job.name]))
    assert done.exit_code == 4, done.output
    assert f"Terminate run {claim.run_id} in Dagster" in done.stdout
    assert f"`dagster-ckpt cancel {job.name} --path {storage}`" in done.stdout


def _wrong_values() -> Iterator[tuple[str, str, str]]:
    for name, command in _COMMANDS.items():
        for option in command.params:
            if not isinstance(option, click.Option):
                continue
            if option.type is DURATION:
                yield from ((name, option.opts[0], text) for text in ("soon", "7 parsecs", "10", "0 s", "200000 d", ""))
            elif isinstance(option.type, click.types.IntParamType):
                # Spark keeps these in an int of Java.
                great = (str(2**31),) if option.opts[0] in {"--limit", "--state-partitions"} else ()
                yield from ((name, option.opts[0], text) for text in ("-1", "many", "1.5", *great))


@pytest.mark.parametrize(("name", "option", "text"), list(_wrong_values()))
def test_a_wrong_duration_or_number_is_a_wrong_call(name: str, option: str, text: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, arguments(tmp_path / "storage", [name, *_CALLS[name]], option, text))
    assert done.exit_code == 2, done.output
    assert option in done.stderr


def test_durations_have_one_type() -> None:
    told = {"--timeout", "--watch", "--older-than", "--retain-for", "--max-age"}
    found = {option.opts[0] for command in _COMMANDS.values() for option in command.params if option.type is DURATION}
    assert found == told
    every = [option for command in _COMMANDS.values() for option in command.params]
    assert not told & {option.opts[0] for option in every if option.type is not DURATION}


@pytest.mark.parametrize("call", _REFUSED, ids=" ".join)
def test_what_is_refused_comes_with_a_command_or_an_option_that_exists(
    call: list[str], storage: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, call))
    told = done.stderr + capfd.readouterr().err
    assert done.exit_code in {1, 2, 9}, done.output
    assert done.stdout == ""
    assert "\\n" not in told, "a line is a line"
    named = re.findall(r"dagster-ckpt ([a-z]+)", told)
    assert set(named) <= set(_COMMANDS)
    options = [text for command in _COMMANDS.values() for option in command.params for text in option.opts]
    assert named or set(re.findall(r"--[a-z-]+", told)) & set(options), told


def test_a_pin_is_named_by_job_latest_and_path(storage: Path) -> None:
    (newest,) = [row for row in json.loads(run_json(storage, "list")) if row["newest"]]
    for named in ("latest", newest["pointer"], f"{newest['pointer']}/_metadata", newest["checkpoint"], "chk-3"):
        assert json.loads(run_json(storage, "pin", JOB, named))["checkpoint"] == newest["checkpoint"]
        assert json.loads(run_json(storage, "unpin", JOB, named))["checkpoint"] == newest["checkpoint"]


def run_json(storage: Path, *call: str) -> str:
    done = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, list(call), "--json"))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("option", ["--where=x", "--store=left", "--option=joinSide=left", "--conf=a=b"])
def test_what_concerns_rows_is_not_ignored_where_no_rows_are_asked_for(option: str, storage: Path) -> None:
    wrong = CliRunner().invoke(main, ["state", JOB, option, "--path", str(storage)])
    assert (wrong.exit_code, "add --operator" in wrong.stderr) == (2, True)


def test_equal_checkpoints_do_not_differ(storage: Path) -> None:
    told = CliRunner().invoke(main, arguments(storage, ["diff", JOB, "latest"]))
    assert told.exit_code == 0
    assert told.stdout.endswith("is compared with itself: nothing differs.\n")


def test_a_note_is_printed_by_any_encoding(storage: Path) -> None:
    saved = ["savepoint", JOB, "--to", "{tmp}/savepoints", "--name", "a", "--note", "für Jörg"]
    assert CliRunner().invoke(main, arguments(storage, saved)).exit_code == 0
    environment: dict[str, Any] = {**os.environ, "PYTHONIOENCODING": "ascii"}
    program = [sys.executable, "-m", "dagster_ckpt.cli", *arguments(storage, ["savepoints"])]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"f\xfcr J\xf6rg" in done.stdout or "für Jörg" in done.stdout


def test_the_shell_completes_commands() -> None:
    asked = {
        **os.environ,
        "_DAGSTER_CKPT_COMPLETE": "bash_complete",
        "COMP_WORDS": "dagster-ckpt sa",
        "COMP_CWORD": "1",
    }
    program = [str(Path(sys.executable).with_name("dagster-ckpt"))]
    done = subprocess.run(program, env=asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["plain,savepoint", "plain,savepoints"]
    script = subprocess.run(
        program, env={**asked, "_DAGSTER_CKPT_COMPLETE": "bash_source"}, capture_output=True, text=True, check=True
    ).stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "call",
    [
        ["compare", JOB, JOB],
        ["compare", _EMPTY, _EMPTY],
        ["drill", "tests.unit.cli.test_cli_every_command:never_built", "--name", "nosuch"],
        ["state", _EMPTY, "--operator", "0"],
    ],
    ids=" ".join,
)
def test_spark_is_not_started_for_what_is_refused(
    call: list[str], storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    for place in ("cli.proof.compare.start_session", "cli.proof.state.start_session", "spark.start_session"):
        monkeypatch.setattr(f"dagster_ckpt.{place}", start)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = CliRunner(catch_exceptions=False).invoke(main, arguments(storage, call))
    assert done.exit_code == 1, done.output
    assert "is no fork" in done.stderr or "has no checkpoint" in done.stderr


def never_built(context: Any, spark: Any) -> Any:
    raise AssertionError("no test runs this query")


_ROOT = Path(__file__).resolve().parents[3]


def _written() -> Iterator[tuple[str, str, bool]]:
    """The calls of this command in the documentation: the page, the call, and whether it is a line of a shell."""
    block = re.compile(r"^ *```(?:bash|sh|shell|console)?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
    for page in [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]:
        name, text = str(page.relative_to(_ROOT)), page.read_text()
        for line in "\n".join(block.findall(text)).replace("\\\n", " ").splitlines():
            if found := re.match(r"\s*(?:\$ )?dagster-ckpt (.*)", line):
                yield name, found[1], True
        for call in re.findall(r"`dagster-ckpt ([a-z][^`]*)`", text):
            yield name, " ".join(call.split()), False


def test_every_call_in_the_documentation_is_one_that_the_command_line_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the text around the blocks a call may leave out what the reader knows."""
    monkeypatch.setenv("DAGSTER_CKPT_PATH", "/data/checkpoints")
    calls = list(_written())
    assert len(calls) > 50
    wrong = []
    for page, text, is_whole in calls:
        name, *words = shlex.split(re.split(r" [|>&]+ ?", text)[0], comments=True)
        try:
            if name not in _COMMANDS:
                raise click.UsageError("no such command")
            if is_whole:
                _COMMANDS[name].make_context(name, words, _CONTEXT)
            known = {option for parameter in _COMMANDS[name].params for option in parameter.opts}
            if unknown := {word for word in words if word.startswith("--")} - known:
                raise click.UsageError(f"no such option: {unknown}")
        except click.ClickException as error:
            wrong.append(f"{page}: dagster-ckpt {text}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)


def test_a_long_read_shows_a_bar_on_a_terminal_and_nowhere_else(storage: Path) -> None:
    """A terminal on standard error; what is printed to a file or a pipe stays as it is."""
    command = [sys.executable, "-m", "dagster_ckpt.cli", *arguments(storage, ["verify", JOB, "chk-3"])]
    piped = subprocess.run(command, check=True, capture_output=True, text=True)
    terminal, end = pty.openpty()
    seen = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=end, text=True, env={**os.environ, "TERM": "xterm"}
    )
    os.close(end)
    bar = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "Verifying chk-3" in bar
    assert "/" in bar, "how much of how much"
    assert (seen.stdout, piped.stderr) == (piped.stdout, "")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option.opts[0])
        for name, command in _COMMANDS.items()
        for option in command.params
        if option.opts[0] in {"--path", "--green-path", "--savepoint-path"}
    ],
)
def test_an_empty_path_is_refused_by_its_name(name: str, option: str) -> None:
    """That is a variable of the shell which is not set; it must not become the working directory, or a TypeError."""
    path = [] if option == "--path" else ["--path", "x"]
    done = CliRunner().invoke(main, [name, *_CALLS[name], *path, option, ""])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"Invalid value for '{option}'" in done.stderr
    assert "it is empty; name a directory or a URL" in done.stderr
