"""A live location in the storage: captured, restored and salvaged by copies that the storage makes, and swept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from dagster_ckpt.checkpoint import CheckpointMetadata, Facts, Source, StateKeys, Topic
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint, verify_checkpoint
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.cleanup.job_sweep import sweep_job
from dagster_ckpt.checkpoint.cleanup.live_locations import forget_live_locations, stored_before
from dagster_ckpt.checkpoint.control.epochs import End
from dagster_ckpt.checkpoint.taking.savepoint_files import copy_to_savepoint
from dagster_ckpt.clock import iso
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import (
    CaptureIncomplete,
    CheckpointFileChanged,
    CheckpointFileMissing,
    CorruptCheckpoint,
    PublishUnknown,
    StorageError,
)
from dagster_ckpt.filesystem import FileSystem, Part, PosixFileSystem, server_side, unheard
from dagster_ckpt.spark.batches.plans import PlannedBatches, lay_out
from dagster_ckpt.spark.capture.from_bucket import capture_stored
from dagster_ckpt.spark.files.bucket_location import StoredCheckpointLocation
from dagster_ckpt.spark.live.choose import recorded_live
from dagster_ckpt.spark.live.in_bucket import stored_live
from dagster_ckpt.spark.live.live_location import QUERY, TOPICS
from dagster_ckpt.testing import FaultInjectingFileSystem, Late, Operation
from tests.helpers.checkpoint.driver import once
from tests.helpers.checkpoint.memory import CopyingMemory, UnprovingMemory
from tests.helpers.spark.stored_starts import JOB, Promised, Start, found_in, shared
from tests.unit.checkpoint.protocol.lives import Held, arrive

Make = Callable[..., Start]


@pytest.fixture(params=[CopyingMemory, UnprovingMemory])
def storage(request: pytest.FixtureRequest) -> CopyingMemory:
    """With checksums of what it copies, and without."""
    made: CopyingMemory = request.param()
    return made


@pytest.fixture
def start(storage: CopyingMemory, tmp_path: Path) -> Make:
    """Starts one after the other, each on a machine of its own."""
    promised, numbers = Promised(), count(1)

    def make(*, local: bool = False, seen: FaultInjectingFileSystem | None = None) -> Start:
        return Start(seen or storage, storage, promised, tmp_path / str(next(numbers)), local=local).start()

    return make


def _carry(storage: CopyingMemory, elsewhere: FileSystem) -> None:
    """Copy all that is stored, as people do."""
    for path, data in reversed(storage.files.items()):
        elsewhere.replace(path, data)


def _read(operations: tuple[Operation, ...]) -> list[str]:
    return [item.path for item in operations if item.name in {"read", "read_stored", "fetch", "checksum"}]


def _written(operations: tuple[Operation, ...]) -> list[str]:
    return [item.path for item in operations if item.name in {"write", "replace", "create"}]


def test_state_is_captured_by_copies_and_only_what_names_other_files_is_read(
    storage: CopyingMemory, start: Make
) -> None:
    seen = FaultInjectingFileSystem(storage)
    first = start(seen=seen)
    first.query.run(3)
    before = len(seen.operations)
    metadata = first.checkpoint()
    operations = seen.operations[before:]
    assert not [path for path in _read(operations) if path.endswith(".sst")]
    assert [path for path in _read(operations) if path.endswith(".zip")]
    assert not [path for path in _written(operations) if path.endswith((".sst", ".zip"))]
    assert len([item for item in operations if item.name == "copy"]) == 2 * (3 + 1)
    state = [file for file in metadata.files if file.path.endswith((".sst", ".zip"))]
    assert len(state) == 8
    for file in state:
        assert file.sha256 is None
        assert file.stored is not None
        assert file.stored == storage.stored(f"{JOB}/{metadata.job_id}/{(file.reference or '').removeprefix('../')}")
    assert all(file.sha256 for file in metadata.files if file not in state)
    assert {file.path.removeprefix("checkpoint/") for file in metadata.files} == first.query.needed(2).keys()
    read = CheckpointCatalog(storage, JOB).load(metadata.job_id, metadata.checkpoint_id)
    assert read == metadata
    assert b'"version": 2' in metadata.encode()
    verify_checkpoint(CheckpointCatalog(storage, JOB), read)


def test_what_names_other_files_is_read_piece_by_piece(
    storage: CopyingMemory, start: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_side, "_CHUNK", 100)
    pieces: list[int] = []
    read_stored = storage.read_stored

    def read(path: str, version: str, part: Part | None = None) -> bytes:
        data = read_stored(path, version, part)
        if path.endswith(".zip"):
            pieces.append(len(data))
        return data

    monkeypatch.setattr(storage, "read_stored", read)
    first = start()
    first.query.run(3)
    verify_checkpoint(CheckpointCatalog(storage, JOB), first.checkpoint())
    assert max(pieces) == 100


def test_what_a_retained_checkpoint_has_is_not_copied_again(start: Make) -> None:
    first = start()
    first.query.run(3)
    one = first.checkpoint()
    first.query.run(1)
    two = first.checkpoint()
    known = {file.reference for file in one.files}
    new = [file.path for file in two.files if file.stored is not None and file.reference not in known]
    assert len(new) == 2 * 2, "one table and one version of each store"


def test_restored_into_a_fresh_location_by_copies(storage: CopyingMemory, start: Make) -> None:
    first = start()
    first.query.run(5)
    metadata = first.checkpoint()
    seen = FaultInjectingFileSystem(storage)
    second = start(seen=seen)
    assert second.restored == metadata
    assert found_in(storage, second) == first.query.needed(4)
    assert not [path for path in _read(seen.operations) if path.endswith((".sst", ".zip"))]
    assert not [path for path in _written(seen.operations) if path.endswith((".sst", ".zip"))]
    second.query.run(1)
    again = second.checkpoint()
    known = {file.reference for file in metadata.files}
    new = [file.path for file in again.files if file.stored is not None and file.reference not in known]
    assert len(new) == 2 * 2, "what was copied from a retained checkpoint is not copied back"


@pytest.mark.parametrize(("then", "finally_"), [(True, False), (False, True), (True, True)])
def test_from_a_bucket_to_a_disk_and_back(storage: CopyingMemory, start: Make, *, then: bool, finally_: bool) -> None:
    starts = [start(local=finally_)]
    starts[0].query.run(3)
    for local in (then, finally_):
        starts[-1].checkpoint()
        starts.append(start(local=local))
        before, now = starts[-2:]
        assert now.restored is not None
        assert found_in(storage, now) == before.query.needed(now.restored.batch)
        now.query.run(2)
    final = starts[-1].checkpoint()
    assert any(file.stored for file in final.files) is not finally_
    verify_checkpoint(CheckpointCatalog(storage, JOB), final)


@pytest.mark.parametrize("local", [False, True])
def test_a_damaged_copy_is_found_before_anything_is_begun(storage: CopyingMemory, start: Make, *, local: bool) -> None:
    first = start()
    first.query.run(2)
    metadata = first.checkpoint()
    first.live.remove()  # the dead start cannot help
    sst = next(file for file in metadata.files if file.path.endswith(".sst"))
    stored = f"{JOB}/{metadata.job_id}/{(sst.reference or '').removeprefix('../')}"
    whole = storage.read(stored)
    changed, shorter = ("was changed", "bytes instead of") if storage.tells_checksums else ("cannot be verified",) * 2
    for data, error, what in (
        (bytes([whole[0] ^ 1]) + whole[1:], CheckpointFileChanged, changed),
        (whole[:-1], CheckpointFileChanged, shorter),
        (None, CheckpointFileMissing, "is gone"),
    ):
        storage.remove(stored)
        if data is not None:
            storage.replace(stored, data)
        with pytest.raises(error, match=what) as caught:
            start(local=local)
        assert isinstance(caught.value, CorruptCheckpoint)
        assert caught.value.checkpoint == metadata.reference
        assert not stored_before(storage, JOB, 100), "half a location is left"
        with pytest.raises(error, match=what):
            verify_checkpoint(CheckpointCatalog(storage, JOB), metadata)


@pytest.mark.parametrize("replaced", [False, True])
def test_what_spark_deletes_or_replaces_after_the_pin_drops_the_attempt(
    storage: CopyingMemory, start: Make, *, replaced: bool
) -> None:
    first = start()
    batch = first.query.run(2)
    pending = first.store.begin()
    snapshot = first.source.pin(batch)
    victim = next(path for path in storage.files if path.endswith(".sst"))
    data = storage.read(victim)
    storage.remove(victim)
    if replaced:
        storage.replace(victim, data[::-1])
    with pytest.raises(CaptureIncomplete, match="not what was pinned"):
        first.write(pending, snapshot)
    assert not shared(storage, first.store.job_id), "what was copied is gone again"
    storage.replace(victim, data)
    first.query.run(1)
    verify_checkpoint(CheckpointCatalog(storage, JOB), first.checkpoint())


def test_nothing_partial_is_captured(storage: CopyingMemory, start: Make) -> None:
    first = start()
    batch = first.query.run(3)
    first.query.plan()
    needed = [path for path in first.query.needed(batch) if not path.startswith("sources/")]
    for path in needed:
        where = f"{JOB}/taskowned/{first.directory.name}/checkpoint/{path}"
        data = storage.read(where)
        storage.remove(where)
        with pytest.raises(CaptureIncomplete):
            first.source.pin(batch)
        assert not any((first.directory / "pins").iterdir())
        storage.replace(where, data)
    snapshot = first.source.pin(batch)
    assert snapshot.facts.planned_batch == batch + 1
    snapshot.release()


def test_an_sst_of_another_size_than_its_zip_says(storage: CopyingMemory, start: Make) -> None:
    first = start()
    batch = first.query.run(3)
    sst = next(path for path in storage.files if path.endswith(".sst"))
    storage.replace(sst, storage.read(sst)[:-1])
    with pytest.raises(CaptureIncomplete, match=r"its snapshot says \d+"):
        first.source.pin(batch)


def test_a_dead_run_is_salvaged_on_another_machine_and_never_written_to(storage: CopyingMemory, start: Make) -> None:
    first = start()
    first.query.run(2)
    first.checkpoint()
    first.query.run(3)
    first.query.plan()  # and dies here
    shutil.rmtree(first.working)
    left = found_in(storage, first)
    seen = FaultInjectingFileSystem(storage)
    second = start(seen=seen)
    assert second.restored is not None
    assert (second.restored.kind, second.restored.batch, second.restored.facts.planned_batch) == ("salvage", 4, 5)
    planned = {f"{kind}/5": left[f"{kind}/5"] for kind in ("offsets", "sources/0")}
    assert found_in(storage, second) == first.query.needed(4) | planned
    assert found_in(storage, first) == left, "the dead run may be alive"
    assert not [path for path in _read(seen.operations) if path.endswith(".sst")]
    tables = [path for path in _written(seen.operations) if first.directory.name in path]
    assert not tables


def test_the_topics_that_a_dead_run_began_to_read_are_in_its_first_checkpoint(
    start: Make,
) -> None:
    """What it was told counts, and not what a checkpoint before was told. What is damaged tells nothing."""

    def topics(restored: CheckpointMetadata | None) -> list[dict[str, Topic]]:
        assert restored is not None
        assert restored.kind == "salvage"
        return [source.topics for source in restored.facts.sources]

    def next_one(noted: dict[str, str] | bytes | None) -> Start:
        made = start()
        if isinstance(noted, bytes):
            made.live.note(TOPICS, noted)
        elif noted is not None:
            source = Source(id="0", offset=None, topics={name: Topic(id=id_) for name, id_ in noted.items()})
            made.live.note(TOPICS, f"[{source.model_dump_json()}]".encode())
        made.query.run(2)
        return made

    next_one({"rows": "old"})
    second = next_one({"rows": "new", "other": "its"})
    assert topics(second.restored) == [{"rows": Topic(id="old")}]
    third = next_one(b"[{")
    assert topics(third.restored) == [{"rows": Topic(id="new"), "other": Topic(id="its")}]
    fourth = next_one(None)
    assert topics(fourth.restored) == topics(third.restored)


def test_what_the_query_of_a_dead_run_told_of_itself_is_in_the_salvage(start: Make) -> None:
    """Without such a note, and with a damaged one, the time zone stays; the query may have changed."""

    def next_one(noted: bytes | None) -> Start:
        made = start()
        if noted is not None:
            made.live.note(QUERY, noted)
        made.query.run(2)
        return made

    def told(made: Start) -> Facts:
        assert made.restored is not None
        assert made.restored.kind == "salvage"
        return made.restored.facts.of_query

    keys = [StateKeys(operator="aggregation", columns=["k", None])]
    all_noted = Facts(time_zone="Asia/Tokyo", state_keys=keys)
    next_one(None)
    second = next_one(all_noted.model_dump_json(exclude_unset=True).encode())
    assert told(second) == Facts()
    third = next_one(b'{"batch": 99, "time_zone": "Europe/Rome"}')
    assert told(third) == all_noted
    fourth = next_one(b'{"time_zone": 5}')
    assert told(fourth) == Facts(time_zone="Europe/Rome")
    assert fourth.restored is not None
    assert fourth.restored.batch != 99
    fifth = next_one(None)
    assert told(fifth) == Facts(time_zone="Europe/Rome")


def test_locations_of_dead_starts_are_no_checkpoints_and_go_with_the_next_one(
    storage: CopyingMemory, start: Make, tmp_path: Path
) -> None:
    first = start()
    first.query.run(2)
    first.checkpoint()
    second = start()
    second.query.run(1)
    assert len(stored_before(storage, JOB, second.claim.epoch + 1)) == 2
    catalog = CheckpointCatalog(storage, JOB)
    assert catalog.job_ids() == [second.store.job_id]
    newest = second.checkpoint()
    forget_live_locations(second.working, storage, JOB, second.claim.epoch)
    _until(lambda: not stored_before(storage, JOB, second.claim.epoch))
    assert found_in(storage, second).keys() >= second.query.needed(newest.batch).keys()
    verify_checkpoint(catalog, newest)
    chosen = catalog.choice()
    assert chosen is not None
    assert recorded_live(chosen[1], storage) is not None
    second.live.remove()
    assert recorded_live(chosen[1], storage) is None
    verify_checkpoint(catalog, newest)


def test_a_start_that_cannot_tell_whether_it_has_salvaged_begins_nothing(storage: CopyingMemory, start: Make) -> None:
    """A salvaged checkpoint that arrives later is newer than what the start would go on from."""
    first = start()
    first.query.run(2)
    first.checkpoint()
    first.query.run(1)
    held: Held = []
    with pytest.raises(PublishUnknown):
        start(seen=FaultInjectingFileSystem(storage, lambda at: Late(held) if is_publish(at) else None))
    held[0]()  # the checkpoint arrives, and what was to keep it from arriving does not
    second = start()
    assert second.restored is not None
    assert (second.restored.kind, second.restored.batch, second.restored.epoch) == ("salvage", 2, 2)


def test_a_start_whose_storage_goes_away_while_it_salvages_begins_nothing(storage: CopyingMemory, start: Make) -> None:
    """The storage is away before the start can find out whether it has taken the salvaged checkpoint."""
    first = start()
    first.query.run(2)
    first.checkpoint()
    first.query.run(1)
    held: Held = []

    def away(at: Operation) -> Late | None:
        if held:
            raise StorageError(f"Could not {at.name} {at.path}.")
        return Late(held) if is_publish(at) else None

    with pytest.raises(PublishUnknown, match="whether chk-2 of the run before is complete: Could not"):
        start(seen=FaultInjectingFileSystem(storage, away))
    held[0]()
    second = start()
    assert second.restored is not None
    assert (second.restored.kind, second.restored.batch) == ("salvage", 2)


def test_a_start_whose_salvage_arrives_too_late_goes_on_from_what_is_retained(
    storage: CopyingMemory, start: Make
) -> None:
    first = start()
    first.query.run(2)
    first.checkpoint()
    first.query.run(1)
    held: Held = []
    second = start(seen=FaultInjectingFileSystem(storage, once("create", "_metadata", Late(held))))
    arrive(held)
    assert second.restored is not None
    assert (second.restored.kind, second.restored.batch) == ("checkpoint", 1)
    newest = second.checkpoint()
    assert [item.name for item in second.store.retained][-1] == newest.name


def is_publish(at: Operation) -> bool:
    return at.name == "create" and at.path.endswith("_metadata")


def test_the_sweep_of_a_job_that_is_over_leaves_what_can_be_salvaged(storage: CopyingMemory, start: Make) -> None:
    first = start()
    first.query.run(2)
    first.checkpoint()
    second = start()
    second.query.run(1)
    storage.replace(f"{JOB}/taskowned/notes/of the user", b"")
    catalog = CheckpointCatalog(storage, JOB)
    end = End(JobStatus.CANCELED.value, "of the test", discarded=False, ended_at=iso(second.clock.time()))
    catalog.records.epochs.record_end(second.claim.epoch, end)
    below = {f"{JOB}/taskowned/{first.directory.name}/{path}" for path in ("begun", "checkpoint/metadata")}
    planned = sweep_job(catalog, second.clock, dry_run=True)
    assert below <= {orphan.path for orphan in planned.orphans}
    assert not [orphan for orphan in planned.orphans if second.directory.name in orphan.path]
    assert stored_before(storage, JOB, second.claim.epoch), "a dry run deletes nothing"
    swept = sweep_job(catalog, second.clock)
    assert {orphan.path for orphan in swept.orphans} == {orphan.path for orphan in planned.orphans}
    assert not stored_before(storage, JOB, second.claim.epoch)
    assert storage.files.keys() >= {f"{JOB}/taskowned/notes/of the user"}
    third = start()
    assert third.restored is not None
    assert (third.restored.kind, third.restored.batch) == ("salvage", 2)
    assert found_in(storage, third) == second.query.needed(2)
    newest = third.checkpoint()
    catalog.records.epochs.record_end(third.claim.epoch, replace(end, status=JobStatus.FINISHED.value))
    sweep_job(catalog, third.clock)
    assert not stored_before(storage, JOB, 100), "a job that has finished has it all in its checkpoints"
    verify_checkpoint(catalog, newest)


def test_a_savepoint_elsewhere_has_the_bytes_themselves(start: Make, tmp_path: Path) -> None:
    first = start()
    batch = first.query.run(3)
    snapshot = first.source.pin(batch)
    saved = first.store.write_savepoint(first.store.begin(), snapshot, PosixFileSystem(tmp_path / "savepoints"))
    snapshot.release()
    assert all(file.sha256 for file in saved.files)
    assert b'"version": 1' in saved.encode()
    materialize_checkpoint(first.catalog, first.catalog.resolve(saved.reference), tmp_path / "restored")
    root = tmp_path / "restored" / "checkpoint"
    found = {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}
    assert found == first.query.needed(batch)


def test_a_savepoint_is_copied_of_a_checkpoint_of_a_job_that_does_not_run(start: Make, tmp_path: Path) -> None:
    first = start()
    first.query.run(3)
    metadata = first.checkpoint()
    saved = copy_to_savepoint(first.catalog, metadata, PosixFileSystem(tmp_path / "savepoints"), first.clock)
    verify_checkpoint(first.catalog, first.catalog.resolve(saved.reference))
    assert saved.size == metadata.size
    assert all(file.sha256 for file in saved.files)


def test_what_is_remembered_of_a_location_is_what_is_there(storage: CopyingMemory, start: Make) -> None:
    first = start()
    location = first.live.location()
    assert isinstance(location, StoredCheckpointLocation)
    for _ in range(3):
        batch = first.query.run(1)
        capture_stored(location, batch, first.directory / "pins" / str(batch)).release()
        assert location.read_before
        assert location.parsed_before
    before = len(location.read_before)
    for path in list(storage.files):
        if "/offsets/" in path or path.endswith("/1.zip"):
            storage.remove(path)
    location.listed()
    assert len(location.read_before) == before - 3
    parsed = {path for path, _ in location.parsed_before}
    assert parsed == {f"state/0/{store}/{version}.zip" for store in (0, 1) for version in (2, 3)}


def _until(done: Callable[[], bool]) -> None:
    give_up, pause = monotonic() + 60, Event()
    while not done():
        assert monotonic() < give_up
        pause.wait(0.01)


def test_a_batch_is_laid_out_again_in_the_storage(storage: CopyingMemory, start: Make) -> None:
    first = start()
    first.query.run(4)
    (plan,) = PlannedBatches(first.live.location(), 1).new(2)
    first.query.plan()
    later = found_in(storage, first)
    with first.live.edited() as logs:
        lay_out(plan, logs)
    now = found_in(storage, first)
    assert now["offsets/2"] == later["offsets/2"]
    assert {path for path in later if path not in now} == {"sources/0/3", "sources/0/4"}, "later entries are cut off"
    assert {path for path in now if path.startswith("state/")} == {path for path in later if path.startswith("state/")}


def test_what_names_its_own_place_names_it_as_hadoop_does(storage: CopyingMemory, tmp_path: Path) -> None:
    live = stored_live(storage, storage, JOB, "000007-0123abcd")
    operator = tmp_path / "checkpoint" / "state" / "0"
    schema = operator / "_stateSchema" / "default" / "0_a"
    metadata = operator / "_metadata" / "v2" / "0"
    for file in (schema, metadata):
        file.parent.mkdir(parents=True)
    schema.touch()
    stores = [{"stateSchemaFilePaths": ["s3a://elsewhere/state/0/_stateSchema/default/0_a"]}]
    metadata.write_text("v2\n" + json.dumps({"stateStoreInfo": stores}))
    live.prepare(tmp_path)
    (told,) = json.loads(metadata.read_text().partition("\n")[2])["stateStoreInfo"]
    assert told["stateSchemaFilePaths"] == [f"{live.spark_url}/state/0/_stateSchema/default/0_a"]
    assert live.spark_url == live.url.replace(storage.url, storage.hadoop_url) != live.url


def test_a_trial_runs_on_a_copy(storage: CopyingMemory, start: Make) -> None:
    first = start()
    first.query.run(2)
    first.checkpoint()
    second = Start(storage, storage, first.promised, first.working / "other")
    newest = find_newest(second.catalog).metadata
    assert newest is not None
    second.live.unpack(second.catalog, newest, second.directory, unheard)
    with second.live.trial(second.directory) as url:
        assert url.endswith("/trial")
        directory = url.removeprefix(f"{storage.hadoop_url}/")
        copies = {path: storage.read(f"{directory}/{path}") for path in storage.stored_below(directory)}
        assert copies == first.query.needed(1)
    assert not storage.stored_below(directory)
    second.live.lay_out(second.directory)
    assert found_in(storage, second) == first.query.needed(1)


def test_a_job_that_was_copied_to_a_disk_restores_if_the_store_told_checksums(
    storage: CopyingMemory, start: Make, tmp_path: Path
) -> None:
    """Generations are those of the bucket: elsewhere the bytes decide."""
    first = start()
    first.query.run(2)
    metadata = first.checkpoint()
    copied = PosixFileSystem(tmp_path / "copied")
    _carry(storage, copied)
    if not storage.tells_checksums:
        with pytest.raises(CheckpointFileChanged, match="cannot be verified: its bucket told no checksum"):
            materialize_checkpoint(CheckpointCatalog(copied, JOB), metadata, tmp_path / "restored")
        with pytest.raises(CheckpointFileChanged, match="copied to where it is now"):
            verify_checkpoint(CheckpointCatalog(copied, JOB), metadata)
        return
    materialize_checkpoint(CheckpointCatalog(copied, JOB), metadata, tmp_path / "restored")
    root = tmp_path / "restored" / "checkpoint"
    found = {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}
    assert found == first.query.needed(1)


@pytest.mark.parametrize("local", [False, True])
def test_without_a_checksum_the_same_bytes_written_again_are_not_believed(tmp_path: Path, *, local: bool) -> None:
    """They cannot be told from others; only the very object that was written for the checkpoint will do."""
    storage, promised = UnprovingMemory(), Promised()
    first = Start(storage, storage, promised, tmp_path / "1").start()
    first.query.run(2)
    metadata = first.checkpoint()
    first.live.remove()
    sst = next(file for file in metadata.files if file.path.endswith(".sst"))
    stored = f"{JOB}/{metadata.job_id}/{(sst.reference or '').removeprefix('../')}"
    verify_checkpoint(CheckpointCatalog(storage, JOB), metadata)
    storage.replace(stored, storage.read(stored))
    with pytest.raises(CheckpointFileChanged, match="cannot be verified: its bucket told no checksum") as caught:
        Start(storage, storage, promised, tmp_path / "2", local=local).start()
    assert sst.path in str(caught.value)
    with pytest.raises(CheckpointFileChanged, match="cannot be verified"):
        verify_checkpoint(CheckpointCatalog(storage, JOB), metadata)


@pytest.mark.parametrize("damaged", [False, True])
def test_what_has_a_checksum_is_read_where_the_store_tells_none(tmp_path: Path, *, damaged: bool) -> None:
    """A job that was moved from gs:// to abfs://: a copy that the store makes there would prove nothing."""
    storage, elsewhere, promised = CopyingMemory(), UnprovingMemory(), Promised()
    first = Start(storage, storage, promised, tmp_path / "1").start()
    first.query.run(3)
    metadata = first.checkpoint()
    first.live.remove()
    _carry(storage, elsewhere)
    if damaged:
        sst = next(file for file in metadata.files if file.path.endswith(".sst"))
        stored = f"{JOB}/{metadata.job_id}/{(sst.reference or '').removeprefix('../')}"
        elsewhere.replace(stored, elsewhere.read(stored)[::-1])
        with pytest.raises(CheckpointFileChanged, match="was changed"):
            Start(elsewhere, elsewhere, promised, tmp_path / "2").start()
        return
    second = Start(elsewhere, elsewhere, promised, tmp_path / "2").start()
    assert found_in(elsewhere, second) == first.query.needed(2)


def test_a_gap_of_asynchronous_progress_is_closed_in_the_storage(storage: CopyingMemory, tmp_path: Path) -> None:
    for path, text in {"offsets/1": "one", "offsets/5": "five", "commits/5": "done"}.items():
        file = tmp_path / "start" / "checkpoint" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    live = stored_live(storage, storage.copies, JOB, "start")
    live.prepare(tmp_path / "start")
    live.lay_out(tmp_path / "start")
    location = live.location()
    assert {batch: location.text(f"offsets/{batch}") for batch in (1, 4, 5)} == {1: "one", 4: "one", 5: "five"}
    assert location.names("offsets") == {"1", "4", "5"}
