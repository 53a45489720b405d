"""Damage to a control record never makes an older start or a loss: it is found, or it changes nothing."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
from collections.abc import Iterator
from dataclasses import fields

import pytest

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.epochs import Choice, End, Epochs, Settled
from dagster_ckpt.checkpoint.control.heartbeat import Completed, Heart, HeartbeatFile
from dagster_ckpt.checkpoint.control.pins import Pins as CheckpointPins
from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive
from dagster_ckpt.checkpoint.control.quarantine import Quarantine, Quarantined
from dagster_ckpt.checkpoint.format.records import encode_record
from dagster_ckpt.errors import (
    CheckpointError,
    CheckpointFileMissing,
    CheckpointNotFound,
    CorruptCheckpoint,
    CorruptRecord,
)
from tests.helpers.checkpoint.driver import JOB, Ledger, ManualClock, Pins, Run, state
from tests.helpers.checkpoint.memory import MemoryFileSystem
from tests.helpers.checkpoint.record_files import as_version_1, resealed
from tests.helpers.checkpoint.record_types import IN_A_SAVEPOINT, record_types
from tests.unit.checkpoint.protocol.story import CONTROL, LINEAGE, Story, told


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return told(Pins(tmp_path_factory.mktemp("pins")))


def after_damage(story: Story, name: str, data: bytes | None, pins: Pins) -> str:
    """Look at the job, launch it, put the record back, launch it again; what became of the first launch."""
    storage, ledger = story.storage.backup(), copy.deepcopy(story.ledger)
    before = storage.files[name]
    if data is None:
        storage.remove(name)
    else:
        storage.files[name] = data
    try:
        newest = find_newest(CheckpointCatalog(storage, JOB)).metadata
        assert newest is not None
        assert newest.reference == story.newest, "an older start without a word"
    except CorruptCheckpoint:
        pass
    outcome = "refused"
    try:
        run = Run(storage, ledger, pins).start()
        number = run.begin().number
        assert number > max(issued for _, issued, epoch in story.ledger.issued), "an id was issued twice"
        outcome = "went on"
    except CheckpointError:
        pass
    storage.files[name] = before
    again = Run(storage, ledger, pins).start()
    assert again.store.restored_from == story.newest
    assert again.begin().number > max(issued for _, issued, _ in story.ledger.issued)
    ledger.examine(storage)
    return outcome


def every_flip(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def every_truncation(data: bytes) -> Iterator[bytes]:
    for end in range(len(data)):
        yield data[:end]


def every_other(story: Story, name: str) -> Iterator[bytes]:
    """The other records in the place of this one."""
    for other in story.records():
        if other != name:
            yield story.storage.files[other]


def every_older(data: bytes) -> Iterator[bytes]:
    """The record as an earlier release wrote it."""
    with contextlib.suppress(ValueError, AttributeError):  # a batch plan, and an issued id, are no record of one object
        yield as_version_1(data)


def damages(story: Story) -> Iterator[tuple[str, bytes]]:
    for name in story.records():
        data = story.storage.files[name]
        for damaged in (*every_flip(data), *every_truncation(data), *every_other(story, name), *every_older(data)):
            yield name, damaged


def test_damage_is_found_or_changes_nothing(story: Story, pins: Pins) -> None:
    chosen = random.Random(7).sample(list(damages(story)), 400)
    outcomes = {after_damage(story, name, data, pins) for name, data in chosen}
    assert outcomes == {"refused", "went on"}


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_all_damage_is_found_or_changes_nothing(story: Story, pins: Pins) -> None:
    for name, data in damages(story):
        after_damage(story, name, data, pins)


def test_another_or_an_older_record_in_the_place_of_one(story: Story, pins: Pins) -> None:
    chosen = random.Random(8)
    for name in story.records():
        others = list(every_other(story, name))
        for data in (*chosen.sample(others, 8), *every_older(story.storage.files[name]), None):
            after_damage(story, name, data, pins)


def test_the_story_has_a_record_of_every_kind(story: Story) -> None:
    """Otherwise a kind of record could be damaged, and nobody would have looked what comes of it."""
    said = [story.storage.files[name].decode() for name in story.records()]
    for kind in record_types() - IN_A_SAVEPOINT:
        members = {f'"{field.name}": ' for field in fields(kind)}
        assert any(all(member in record for member in members) for record in said), kind


class TestChoices:
    def test_a_damaged_old_one_hides_no_checkpoint(self, story: Story, pins: Pins) -> None:
        """It had the next start take checkpoints before it for void, and delete them although they were pinned."""
        name = f"{CONTROL}epochs/e-0000000002.choice"
        assert after_damage(story, name, story.storage.files[name][:-5], pins) == "went on"

    def test_the_newest_damaged_is_never_an_older_start(self, story: Story, pins: Pins) -> None:
        name = f"{CONTROL}epochs/e-0000000003.choice"
        assert after_damage(story, name, story.storage.files[name][:-5], pins) == "refused"
        storage = story.storage.backup()
        storage.files[name] = story.storage.files[f"{CONTROL}epochs/e-0000000002.choice"]
        with pytest.raises(CorruptRecord, match=r"e-0000000003\.choice") as refusal:
            find_newest(CheckpointCatalog(storage, JOB))
        assert "restore_from" in refusal.value.hint

    def test_where_damaged_ones_alone_could_tell_a_checkpoint_is_named_and_stays(
        self, story: Story, pins: Pins
    ) -> None:
        storage, ledger = story.storage.backup(), copy.deepcopy(story.ledger)
        for epoch in (2, 3):
            storage.files[f"{CONTROL}epochs/e-{epoch:010}.choice"] = b"{"
        completed, broken = CheckpointCatalog(storage, JOB).completed(LINEAGE)
        assert {item.checkpoint_id for item in completed} | {
            int(str(error.checkpoint).rpartition("-")[2]) for error in broken
        } == set(CheckpointCatalog(story.storage, JOB).completed_ids(LINEAGE))
        assert all(isinstance(error, CorruptRecord) for error in broken)
        assert broken
        again = Run(storage, ledger, pins).start(story.newest)
        assert set(CheckpointCatalog(story.storage, JOB).completed_ids(LINEAGE)) - {6} <= set(  # chk-6 is to be deleted
            CheckpointCatalog(storage, JOB).completed_ids(LINEAGE)
        )
        again.checkpoint(state(9), 9)
        Run(storage, ledger, pins).start()
        ledger.examine(storage)

    def test_one_that_voids_still_voids_beside_a_damaged_one(self, story: Story) -> None:
        """A checkpoint that appears later than the newest choice is void, whatever became of the choice between."""
        storage = story.storage.backup()
        manifest = storage.files[f"{JOB}/{LINEAGE}/chk-1/_metadata"]
        del storage.files[f"{JOB}/{LINEAGE}/chk-1/_metadata"]
        name = f"{CONTROL}epochs/e-0000000003.choice"
        storage.files[name] = resealed(storage.files[name], complete=[2, 4, 5, 6])
        storage.files[f"{CONTROL}epochs/e-0000000002.choice"] = b"{"
        storage.files[f"{JOB}/{LINEAGE}/chk-1/_metadata"] = manifest
        with pytest.raises(CheckpointNotFound, match="void"):
            CheckpointCatalog(storage, JOB).load(LINEAGE, 1)


class TestANewestManifestThatIsDeleted:
    def test_it_is_missed(self, story: Story, pins: Pins) -> None:
        storage = story.storage.backup()
        manifest = storage.files.pop(f"{JOB}/{story.newest}/_metadata")
        with pytest.raises(CheckpointFileMissing, match="is gone: epoch 3 completed it") as refusal:
            find_newest(CheckpointCatalog(storage, JOB))
        assert refusal.value.checkpoint == story.newest
        older = refusal.value.hint.partition("restore_from: ")[2].removesuffix(".")
        assert older == f"{LINEAGE}/chk-8"
        storage.files[f"{JOB}/{story.newest}/_metadata"] = manifest
        newest = find_newest(CheckpointCatalog(storage, JOB)).metadata
        assert newest is not None
        assert newest.reference == story.newest

    def test_who_goes_back_is_not_asked_again(self, story: Story, pins: Pins) -> None:
        storage, ledger = story.storage.backup(), copy.deepcopy(story.ledger)
        del storage.files[f"{JOB}/{story.newest}/_metadata"]
        del ledger.acknowledged[story.newest]
        again = Run(storage, ledger, pins).start(f"{LINEAGE}/chk-8")
        assert again.begin().number > 9
        newest = find_newest(CheckpointCatalog(storage, JOB)).metadata
        assert newest is not None
        assert newest.reference == f"{LINEAGE}/chk-8"

    def test_one_in_quarantine_is_passed_over_by_name(self, story: Story) -> None:
        storage = story.storage.backup()
        del storage.files[f"{JOB}/{story.newest}/_metadata"]
        Quarantine(storage, JOB).add(Quarantined(story.newest, "gone", 4, "run", "h", "2026-11-23T10:00:00+00:00"))
        newest = find_newest(CheckpointCatalog(storage, JOB))
        assert newest.metadata is not None
        assert newest.metadata.reference == f"{LINEAGE}/chk-8"
        assert newest.passed_over[0] == story.newest

    def test_the_next_run_knows_it_before_it_has_a_checkpoint_of_its_own(self, story: Story) -> None:
        storage = story.storage.backup()
        heart = Heart(HeartbeatFile(storage, JOB), ManualClock(), epoch=4, run_id="next")
        heart._once()
        beat = HeartbeatFile(storage, JOB).read()
        assert beat is not None
        assert (beat.epoch, beat.completed) == (4, Completed(story.newest, 3))
        heart.completed(f"{LINEAGE}/chk-12", 4)
        heart._once()
        beat = HeartbeatFile(storage, JOB).read()
        assert beat is not None
        assert beat.completed == Completed(f"{LINEAGE}/chk-12", 4)


class TestAJobThatWasUpgraded:
    """Records of version 1 tell no place; the releases that wrote them are told by the claims of their epochs."""

    @pytest.mark.parametrize("kind", ["choice", "end", "settled"])
    def test_an_old_record_is_not_believed_in_the_place_of_a_new_one(self, story: Story, kind: str) -> None:
        storage = story.storage.backup()
        place = f"{CONTROL}epochs/e-0000000003.{kind}"
        records: dict[str, Choice | End | Settled] = {
            "choice": Choice(LINEAGE, None, 1, 0, "/live", "h", None, "of the first start", complete=()),
            "end": End("CANCELED", "terminated", discarded=True, ended_at="2026-11-23T10:00:00+00:00"),
            "settled": Settled({LINEAGE: [1]}),
        }
        storage.files[place] = as_version_1(encode_record(records[kind], place))
        with pytest.raises(CorruptRecord, match=f"{kind} cannot be believed: it is of version 1"):
            find_newest(CheckpointCatalog(storage, JOB))

    def test_nor_is_an_old_file_of_the_archive(self, story: Story) -> None:
        storage = story.storage.backup()
        archive = PlanArchive(storage, JOB, LINEAGE)
        body = b'{"after": -1, "previous": null}\n'
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}\n".encode()
        storage.files[f"{archive.of_epoch(3)}/begin"] = body + digest
        with pytest.raises(CorruptRecord, match="it is of version 1"):
            archive.newest()
        claim = f"{CONTROL}epochs/e-0000000003"
        storage.files[claim] = as_version_1(storage.files[claim])
        assert PlanArchive(storage, JOB, LINEAGE).newest() == 3


class TestTheNextStepThatIsNamed:
    def test_a_checkpoint_can_be_named_where_no_choice_tells_of_it(self, story: Story, pins: Pins) -> None:
        """The newest start has no checkpoint yet, and its choice is damaged."""
        storage, ledger = story.storage.backup(), copy.deepcopy(story.ledger)
        Run(storage, ledger, pins).start()
        storage.files[f"{CONTROL}epochs/e-0000000004.choice"] = b"{"
        with pytest.raises(CorruptRecord):
            find_newest(CheckpointCatalog(storage, JOB))
        again = Run(storage, ledger, pins).start(story.newest)
        assert again.store.restored_from == story.newest
        again.checkpoint(state(9), 9)
        Run(storage, ledger, pins).start()
        ledger.examine(storage)

    def test_and_where_a_sweep_is_not_told_of(self, story: Story, pins: Pins) -> None:
        storage, ledger = story.storage.backup(), copy.deepcopy(story.ledger)
        storage.files[f"{CONTROL}epochs/e-0000000003.settled"] = b"{"
        with pytest.raises(CorruptRecord):
            find_newest(CheckpointCatalog(storage, JOB))
        assert Run(storage, ledger, pins).start(story.newest).store.restored_from == story.newest

    @pytest.mark.parametrize(
        ("name", "what"),
        [
            ("epochs/e-9999999999", "no job has been started that often"),
            (f"issued/{LINEAGE}/e-0000000001-999999999999999", "no job has had that many checkpoints"),
        ],
    )
    def test_a_name_that_leaves_no_room_is_told(self, story: Story, pins: Pins, name: str, what: str) -> None:
        storage, ledger = story.storage.backup(), copy.deepcopy(story.ledger)
        storage.files[f"{CONTROL}{name}"] = b""
        with pytest.raises(CorruptRecord, match=what) as refusal:
            Run(storage, ledger, pins).start()
        assert name in refusal.value.message
        del storage.files[f"{CONTROL}{name}"]
        for leftover in [other for other in storage.files if "e-99999" in other]:
            del storage.files[leftover]
        assert Run(storage, ledger, pins).start().store.restored_from == story.newest

    def test_what_is_no_number_of_ours_is_none(self, story: Story) -> None:
        storage = story.storage.backup()
        storage.files[f"{CONTROL}epochs/e-000000000\N{ARABIC-INDIC DIGIT NINE}"] = b""
        storage.files[f"{JOB}/{LINEAGE}/chk-{'9' * 5000}/_metadata"] = b""
        catalog = CheckpointCatalog(storage, JOB)
        assert catalog.records.epochs.highest() == 3
        assert max(catalog.numbers(LINEAGE)) == 9


def test_a_damaged_pin_or_quarantine_holds_by_its_name(story: Story) -> None:
    storage = story.storage.backup()
    for name in story.records():
        if "/pins/" in name or "/quarantine/" in name:
            storage.files[name] = b"{"
    assert "cannot be read" in CheckpointPins(storage, JOB).reasons()[f"{LINEAGE}/chk-1"]
    assert "cannot be read" in Quarantine(storage, JOB).records()[f"{LINEAGE}/chk-3"].reason


def test_a_damaged_claim_of_a_newer_run_fences(story: Story) -> None:
    storage = story.storage.backup()
    storage.files[f"{CONTROL}epochs/e-0000000003"] = b"\xff"
    with pytest.raises(CheckpointError, match="epoch 3"):
        Epochs(storage, JOB).check(2)


def test_ids_that_an_earlier_release_issued_are_not_issued_again(story: Story, pins: Pins) -> None:
    storage, ledger = story.storage.backup(), copy.deepcopy(story.ledger)
    for name in [name for name in storage.files if "/issued/" in name]:
        epoch, number = name.rpartition("/")[2].split("-")[1:]
        del storage.files[name]
        storage.files[f"{CONTROL}issued/{LINEAGE}/e-{epoch}"] = f"{int(number) + 20}\n".encode()
    assert Run(storage, ledger, pins).start().begin().number == 30
    storage.files[f"{CONTROL}issued/{LINEAGE}/e-0000000003"] = b"4\x81\n"
    with pytest.raises(CorruptRecord, match="issued"):
        Run(storage, ledger, pins).start()


def test_a_job_of_an_earlier_release_goes_on(story: Story, pins: Pins) -> None:
    """Every record as the releases before version 2 wrote it."""
    storage, ledger = story.storage.backup(), copy.deepcopy(story.ledger)
    for name in story.records():
        if "/issued/" not in name:
            storage.files[name] = as_version_1(storage.files[name])
    again = Run(storage, ledger, pins).start()
    assert again.store.restored_from == story.newest
    again.checkpoint(state(9), 9)
    ledger.examine(storage)


def test_a_damaged_choice_does_not_matter_to_a_checkpoint_that_an_older_one_decides(
    memory: MemoryFileSystem, ledger: Ledger, pins: Pins
) -> None:
    run = Run(memory, ledger, pins).start()
    taken = run.checkpoint(state(1))
    for _ in range(2):
        Run(memory, ledger, pins).start()
    memory.replace(f"{JOB}/control/epochs/e-{3:010}.choice", b"damaged")
    assert CheckpointCatalog(memory, JOB).load(run.store.job_id, 1) == taken
    memory.replace(f"{JOB}/control/epochs/e-{2:010}.choice", b"damaged")
    with pytest.raises(CorruptRecord):
        CheckpointCatalog(memory, JOB).load(run.store.job_id, 1)
    for pointer in (f"{LINEAGE}/chk-1", f"{memory.url}/{JOB}/{LINEAGE}/chk-1"):
        assert CheckpointCatalog(memory, JOB).resolve(pointer) == taken, "whoever names it accepts it"
