"""Whatever the files below a job say, and however they are named, every reader gives a result or a domain error.

A story with a record of every kind is changed: members of records and manifests become any other value under the
checksum and at the place that belong to them, bytes are flipped, records of the first release take the place of
records, files and directories of any name appear. Then everything that reads a job's storage looks at it.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.lineage import line_before
from dagster_ckpt.checkpoint.catalog.newest import fallback_of, find_newest
from dagster_ckpt.checkpoint.catalog.pointers import job_names, resolve_checkpoint_pointer
from dagster_ckpt.checkpoint.cleanup.broken_checkpoints import dispose_broken, is_broken
from dagster_ckpt.checkpoint.cleanup.dead_runs import end_dead_epoch, finish_deletions, is_unfinished
from dagster_ckpt.checkpoint.cleanup.job_sweep import sweep_job
from dagster_ckpt.checkpoint.cleanup.live_locations import epoch_of_start, stored_before
from dagster_ckpt.checkpoint.control.epochs import Claim
from dagster_ckpt.checkpoint.control.failures import Streak, restart_after
from dagster_ckpt.checkpoint.control.pins import Pins as CheckpointPins
from dagster_ckpt.checkpoint.format.file_names import is_checkpoint_file, is_record, is_records_directory, written_by
from dagster_ckpt.checkpoint.format.layout import checkpoint_id, is_job_id, is_job_name, validate_job_name
from dagster_ckpt.cli import changing, looking, main, status
from dagster_ckpt.config import CheckpointConfig, JobStatus, NoRestart
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.paths import is_same_place, local_path, split_location
from tests.helpers.checkpoint.driver import JOB, ManualClock, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.record_files import resealed
from tests.unit.checkpoint.protocol.hostile import changed, damaged, texts
from tests.unit.checkpoint.protocol.story import CONTROL, LINEAGE, SAVEPOINT, Story, told

DIRECTORIES = [
    "",
    *("epochs", f"issued/{LINEAGE}", "deletions", "failures", "failures/s-0000000001", "pins", "quarantine"),
    *("requests", "savepoints", "starts", f"wal/{LINEAGE}", f"wal/{LINEAGE}/e-0000000003"),
]
#: Names that begin like names of records.
NAMES = st.builds(
    lambda begin, end: f"{begin}{end}",
    st.sampled_from(["", "e-", "e-0000000003.", "d-0000000003-", "s-", f"p-{LINEAGE}-chk-", f"q-{LINEAGE}-chk-", "r-"]),
    st.sampled_from(["9" * 10, "9" * 30, "0" * 32, "\u0669" * 10, "choice", "chk-0", "-", ".answer"])
    | st.text(max_size=9),
).filter(lambda name: name and "/" not in name and "\0" not in name)


@pytest.fixture(scope="module")
def pins_of_all(tmp_path_factory: pytest.TempPathFactory) -> Pins:
    return Pins(tmp_path_factory.mktemp("pins"))


@pytest.fixture(scope="module")
def story(pins_of_all: Pins) -> Story:
    return told(pins_of_all)


def hostile(draw: st.DrawFn, data: bytes) -> bytes:
    """The file as somebody has changed it who can seal it again, or a bit."""
    kind = draw(st.sampled_from(["change", "change", "change", "old form", "damage"]))
    document = None
    with contextlib.suppress(ValueError):
        document = json.loads(data)
    if kind == "damage" or not isinstance(document, dict):
        return damaged(draw, data)
    members = changed(draw, document)
    if not isinstance(members, dict):
        return json.dumps(members).encode()
    if kind == "old form":
        return json.dumps({key: members[key] for key in members.keys() - {"version", "place", "digest"}}).encode()
    with contextlib.suppress(ValueError, KeyError):
        return resealed(json.dumps({"digest": "", **members}).encode())
    return json.dumps(members).encode()


@st.composite
def changes(draw: st.DrawFn, story: Story) -> dict[str, bytes]:
    """The files to put into the story, by path."""
    files = story.storage.files
    controls = sorted(name for name in files if name.startswith(CONTROL))
    manifests = sorted(name for name in files if name.endswith("/_metadata"))
    made: dict[str, bytes] = {}
    for _ in range(draw(st.integers(1, 3))):
        match draw(st.sampled_from(["record", "record", "record", "manifest", "exchange", "name", "lineage"])):
            case "record":
                path = draw(st.sampled_from(controls))
                made[path] = hostile(draw, files[path])
            case "manifest":
                path = draw(st.sampled_from(manifests))
                made[path] = hostile(draw, files[path])
            case "exchange":
                made[draw(st.sampled_from(controls))] = files[draw(st.sampled_from(controls))]
            case "name":
                directory = draw(st.sampled_from(DIRECTORIES))
                name = f"{CONTROL}{directory}/{draw(NAMES)}".replace("//", "/")
                made[name] = files[draw(st.sampled_from(controls))] if draw(st.booleans()) else b""
            case _:
                made[f"{JOB}/{draw(st.sampled_from([LINEAGE, 'f' * 32, 'shared']))}/{draw(NAMES)}/_metadata"] = b""
    return made


def domain_errors() -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(CheckpointError)


def readers(storage: MemoryFileSystem, story: Story, pins: Pins) -> list[Callable[[], object]]:
    """Everything that reads a job's storage; what changes it comes last."""
    catalog = CheckpointCatalog(storage, JOB)
    records, clock = catalog.records, ManualClock()
    claim = Claim(3, "token", 3, "run", "h", 1, "2026-11-23T10:00:00.000+00:00")

    def failures() -> None:
        for series in [1, *records.failures.series()]:
            if found := records.failures.of(series):
                Streak.of(found)
                restart_after(found, NoRestart(), JOB)

    def plans() -> None:
        archive = records.plans(LINEAGE)
        archive.newest_after(-1)
        archive.batches()
        archive.planned(0)
        archive.forget(before=3)

    return [
        lambda: find_newest(catalog),
        lambda: fallback_of(find_newest(catalog, prefer_checkpoint=False)),
        lambda: [catalog.completed(job_id) for job_id in catalog.job_ids()],
        lambda: catalog.load(LINEAGE, 9),
        catalog.choices,
        catalog.given_up,
        lambda: line_before(catalog, story.newest),
        lambda: is_unfinished(catalog),
        lambda: records.heartbeat.watched(clock, clock.advance),
        lambda: records.heartbeat.judged(claim, None, clock),
        lambda: [records.epochs.read_end(epoch) for epoch in records.epochs.names()],
        lambda: [records.epochs.read_claim(epoch) for epoch in records.epochs.names()],
        lambda: records.epochs.check(3),
        records.pins.reasons,
        lambda: records.pins.numbers(LINEAGE),
        records.quarantine.records,
        records.deletions.pending,
        records.taken_savepoints.known,
        lambda: records.taken_savepoints.taken_in(2),
        lambda: records.savepoint_requests.answer_to(f"{7:032x}"),
        lambda: records.savepoint_requests.unread(answer_at=1.0),
        lambda: records.savepoint_requests.forget_old(10**9),
        lambda: records.claim_ownership("dagster"),
        lambda: catalog.next_id(LINEAGE),
        lambda: stored_before(storage, JOB, 9),
        failures,
        plans,
        lambda: is_broken(catalog, LINEAGE, 3),
        lambda: dispose_broken(catalog, LINEAGE, 3),
        lambda: sweep_job(catalog, clock, dry_run=True, older_than=timedelta(days=1), wait=clock.advance),
        lambda: Run(storage, copy.deepcopy(story.ledger), pins).claim_epoch(),
        lambda: finish_deletions(catalog, 9),
        lambda: Run(storage, copy.deepcopy(story.ledger), pins).start(story.newest).checkpoint(state(9), 9),
        lambda: end_dead_epoch(catalog, replace(claim, epoch=5), CheckpointConfig(), JobStatus.CANCELED, "", clock),
        lambda: sweep_job(catalog, clock, older_than=timedelta(0), quarantined=True, wait=clock.advance),
    ]


COMMANDS = ["list", "starts", "status", "verify", "retention", "describe", "sweep"]


def look(story: Story, pins: Pins, made: dict[str, bytes], patch: pytest.MonkeyPatch) -> None:
    storage = story.storage.backup()
    for path, data in made.items():
        storage.create(path, data) if path not in storage.files else storage.replace(path, data)
    for module in (looking, changing, status):
        patch.setattr(module, "storage_at", lambda path: storage)
    for command in COMMANDS:
        options = ["--dry-run"] if command == "sweep" else []
        result = CliRunner(catch_exceptions=False).invoke(main, [command, JOB, *options, "--path", "here"])
        assert result.exit_code in {0, 1, 5}
        assert "Traceback" not in result.output
    for read in readers(storage, story, pins):
        with domain_errors():
            read()
    assert job_names(storage) == [JOB]


def fuzz(story: Story, pins: Pins, patch: pytest.MonkeyPatch, count: int) -> None:
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(changes(story))
    def fuzzed(made: dict[str, bytes]) -> None:
        look(story, pins, made, patch)

    fuzzed()


def test_what_is_not_changed_is_read(story: Story, pins_of_all: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all the readers could be refusals of what is valid."""
    storage = story.storage.backup()
    refused = [number for number, read in enumerate(readers(storage, story, pins_of_all)) if not _succeeds(read)]
    assert refused == [], refused
    look(story, pins_of_all, {}, monkeypatch)


def _succeeds(read: Callable[[], object]) -> bool:
    try:
        read()
    except CheckpointError:
        return False
    return True


def test_every_reader_gives_a_result_or_a_domain_error(
    story: Story, pins_of_all: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzz(story, pins_of_all, monkeypatch, 40)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_every_reader_gives_a_result_or_a_domain_error_many_times(
    story: Story, pins_of_all: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzz(story, pins_of_all, monkeypatch, 1_500)


pieces = [
    "\0",
    "\ud800",
    "\u0661",
    *[
        "file://",
        "s3://",
        "..",
        "/",
        "~",
        "%",
        "#",
        "?",
        ":",
        "chk-1",
        "_metadata",
        "shared/../",
        "e-0000000001",
        ".choice",
    ],
]
paths = st.lists(
    st.sampled_from([*pieces, "s3://bucket:", LINEAGE, JOB, SAVEPOINT, "9" * 40, "9" * 5000]) | texts, max_size=5
).map("".join)

#: Functions of a name or a path that was typed, or read from a storage.
PATH_FUNCTIONS: dict[str, Callable[[Story, str], object]] = {
    "resolve": lambda story, path: CheckpointCatalog(story.storage, JOB).resolve(path),
    "resolve_checkpoint_pointer": lambda story, path: resolve_checkpoint_pointer(path),
    "a catalog of this job": lambda story, path: CheckpointCatalog(story.storage, path),
    "line_before": lambda story, path: line_before(CheckpointCatalog(story.storage, JOB), path),
    "validate_job_name": lambda story, path: validate_job_name(path),
    "is_job_name": lambda story, path: is_job_name(path),
    "is_job_id": lambda story, path: is_job_id(path),
    "checkpoint_id": lambda story, path: checkpoint_id(path),
    "epoch_of_start": lambda story, path: epoch_of_start(path),
    "written_by": lambda story, path: written_by(path),
    "is_checkpoint_file": lambda story, path: is_checkpoint_file(path),
    "is_record": lambda story, path: is_record(path),
    "is_records_directory": lambda story, path: is_records_directory(path),
    "split_location": lambda story, path: split_location(path),
    "is_same_place": lambda story, path: [is_same_place(f"/{path}", other) for other in ("/", "/tmp", f"//{path}/..")],
    "local_path": lambda story, path: local_path(path),
    "a path of a storage": lambda story, path: story.storage.list(path),
    "pins of": lambda story, path: CheckpointPins(story.storage, JOB).clear(path),
}
#: These would ask for a bucket over the network.
ASKING = {"resolve", "resolve_checkpoint_pointer"}


@pytest.mark.parametrize("name", PATH_FUNCTIONS)
@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(path=paths)
@example(path="s3://bucket:" + "9" * 5000)
def test_every_path_gives_a_result_or_a_domain_error(story: Story, name: str, path: str) -> None:
    if name not in ASKING or not path.startswith("s3://"):
        with domain_errors():
            PATH_FUNCTIONS[name](story, path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PATH_FUNCTIONS)
@settings(max_examples=2_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(path=paths)
def test_every_path_gives_a_result_or_a_domain_error_many_times(story: Story, name: str, path: str) -> None:
    if name not in ASKING or not path.startswith("s3://"):
        with domain_errors():
            PATH_FUNCTIONS[name](story, path)
