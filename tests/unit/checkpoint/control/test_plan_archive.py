"""Whatever a job has been through, its archive knows what ran after a checkpoint: on the line that leads to now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dagster_ckpt.checkpoint.control.plan_archive import PlanArchive, PlanArchiveWriter, PlannedBatch
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.errors import CorruptCheckpoint, CorruptRecord, StorageError
from tests.helpers.checkpoint.manifests import JOB_ID, MANIFEST
from tests.helpers.checkpoint.memory import MemoryFileSystem

JOB = "flights"


def metadata(epoch: int, batch: int, number: int = 1) -> CheckpointMetadata:
    return replace(MANIFEST, job_name=JOB, checkpoint_id=number, epoch=epoch, batch=batch)


@dataclass
class Epoch:
    """One start: what it began after, and all batches of its line, its own and those of the epochs before."""

    number: int
    writer: PlanArchiveWriter
    plans: dict[int, PlannedBatch]
    committed: int
    after: int
    parent: Epoch | None


@dataclass(frozen=True)
class Taken:
    """A retained checkpoint, and the epoch on whose line it was taken."""

    metadata: CheckpointMetadata
    origin: int


class Archive(RuleBasedStateMachine):
    """Starts that resume, salvage, go back or die early; zombies that still append; packing, with retention."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryFileSystem()
        self.archive = PlanArchive(self.storage, JOB, JOB_ID)
        self.began: list[Epoch] = []
        self.claimed = 0
        self.retained: list[Taken] = []
        self.ids = 0
        self.written = 0
        #: What the next resume goes on from when nothing newer is taken: a checkpoint, or nothing.
        self.choice: Taken | None = None

    @property
    def now(self) -> Epoch:
        return self.began[-1]

    def plan(self, batch: int) -> PlannedBatch:
        self.written += 1
        return PlannedBatch(batch, {f"offsets/{batch}": f"v1\n{self.written} \u2028\n"})

    def writer(self, epoch: int) -> PlanArchiveWriter:
        return PlanArchiveWriter(self.storage, JOB, JOB_ID, epoch, lambda: None)

    def begin(self, number: int, taken: Taken | None, replayed: int | None) -> None:
        after = -1 if taken is None else taken.metadata.batch
        line = self.archive.newest() if taken is None else self.archive.line_through(taken.metadata)
        known = self.archive.newest_after(-1) if taken is None else self.archive.after(taken.metadata)
        pending = known if replayed is None else known[:replayed]
        writer = self.writer(number)
        writer.begin(after, line, pending)
        source = self.line_of(taken)
        plans = {batch: plan for batch, plan in source.items() if batch <= after}
        plans |= {plan.batch: plan for plan in pending}
        self.began.append(Epoch(number, writer, plans, after + len(pending), after, self.newest_line(taken)))
        self.choice = taken

    def newest_line(self, taken: Taken | None) -> Epoch | None:
        """The newest start that came of this one, or of one that came of it, after the checkpoint."""
        if taken is None:
            return self.began[-1] if self.began else None
        for newest in reversed(self.began):
            epoch: Epoch | None = newest
            until = max(newest.plans, default=-1)
            while epoch is not None:
                if epoch.number == taken.origin and taken.metadata.batch <= until:
                    return newest
                until, epoch = min(until, epoch.after), epoch.parent
        return None

    def line_of(self, taken: Taken | None) -> dict[int, PlannedBatch]:
        line = self.newest_line(taken)
        return {} if line is None else line.plans

    def expected(self, taken: Taken | None) -> list[PlannedBatch]:
        plans, found = self.line_of(taken), []
        batch = 0 if taken is None else taken.metadata.batch + 1
        while batch in plans:
            found.append(plans[batch])
            batch += 1
        return found

    def take(self, epoch: int, batch: int, origin: int) -> Taken:
        self.ids += 1
        taken = Taken(metadata(epoch, batch, self.ids), origin)
        self.retained.append(taken)
        self.choice = taken
        return taken

    @initialize()
    def first(self) -> None:
        self.claimed = 1
        self.begin(1, None, None)

    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        """Batches are planned, and all but the last of them, or all, have committed."""
        first = max(self.now.plans, default=-1) + 1
        plans = [self.plan(first + number) for number in range(data.draw(st.integers(1, 4)))]
        at = data.draw(st.integers(1, len(plans)))
        self.now.writer.append(plans[:at])
        self.now.writer.append(plans[at:])
        self.now.plans |= {plan.batch: plan for plan in plans}
        self.now.committed = plans[-1].batch - data.draw(st.integers(0, 1))

    @precondition(lambda self: self.now.committed >= 0)
    @rule()
    def checkpoint(self) -> None:
        self.take(self.now.number, self.now.committed, self.now.number)

    @rule(salvages=st.booleans(), dies=st.booleans())
    def resume(self, salvages: bool, dies: bool) -> None:
        """The next start goes on from the newest; it may salvage before, and die before it begins."""
        self.claimed += 1
        if salvages and self.now.committed > (-1 if self.choice is None else self.choice.metadata.batch):
            self.take(self.claimed, self.now.committed, self.now.number)
        if not dies:
            self.begin(self.claimed, self.choice, None)

    @precondition(lambda self: self.retained)
    @rule(data=st.data(), dies=st.booleans())
    def go_back(self, data: st.DataObject, dies: bool) -> None:
        """A start goes back to any checkpoint, and replays some of what came after."""
        self.claimed += 1
        self.choice = data.draw(st.sampled_from(self.retained))
        if not dies:
            self.begin(self.claimed, self.choice, data.draw(st.integers(0, 3)))

    @precondition(lambda self: len(self.began) > 1)
    @rule(data=st.data())
    def zombie(self, data: st.DataObject) -> None:
        """A start that was declared dead plans one more batch. On its own line that is so."""
        old = data.draw(st.sampled_from(self.began[:-1]))
        plan = self.plan(max(old.plans, default=-1) + 1)
        old.writer.append([plan])
        old.plans[plan.batch] = plan

    @precondition(lambda self: self.retained)
    @rule(data=st.data())
    def pack(self, data: st.DataObject) -> None:
        """As after a checkpoint of the running epoch; what the job went on from is always retained."""
        if self.choice is None:
            return
        kept = data.draw(st.sets(st.sampled_from(range(len(self.retained))), min_size=1))
        self.retained = [taken for at, taken in enumerate(self.retained) if at in kept or taken is self.choice]
        self.now.writer.pack([taken.metadata for taken in self.retained])

    @invariant()
    def what_ran_after_a_checkpoint_is_known(self) -> None:
        for taken in self.retained:
            assert self.archive.after(taken.metadata) == self.expected(taken)

    @invariant()
    def before_the_first_checkpoint_all_is_known(self) -> None:
        if self.ids == 0:
            assert self.archive.newest_after(-1) == self.expected(None)


TestArchive = Archive.TestCase
TestArchive.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


@pytest.fixture
def storage() -> MemoryFileSystem:
    storage = MemoryFileSystem()
    first = PlanArchiveWriter(storage, JOB, JOB_ID, 1, lambda: None)
    first.begin(-1, None, [])
    first.append([PlannedBatch(batch, {f"offsets/{batch}": "v1"}) for batch in range(4)])
    second = PlanArchiveWriter(storage, JOB, JOB_ID, 2, lambda: None)
    second.begin(1, 1, [PlannedBatch(2, {"offsets/2": "v1"})])
    return storage


def test_every_flipped_bit_and_every_cut_is_found(storage: MemoryFileSystem) -> None:
    assert [plan.batch for plan in PlanArchive(storage, JOB, JOB_ID).after(metadata(1, 0))] == [1, 2]
    read = 0
    for path, sound in list(storage.files.items()):
        for damaged in [sound[:at] for at in range(len(sound))] + [
            sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :] for at in range(len(sound)) for bit in (0, 5)
        ]:
            storage.files[path] = damaged
            with pytest.raises(CorruptCheckpoint, match="truncated or was changed") as caught:
                PlanArchive(storage, JOB, JOB_ID).after(metadata(1, 0))
            assert path in caught.value.message
            assert "replay_to: none" in caught.value.hint
            read += 1
        storage.files[path] = sound
    assert read > 1000


def first_epoch(storage: MemoryFileSystem) -> tuple[PlanArchive, PlanArchiveWriter]:
    writer = PlanArchiveWriter(storage, JOB, JOB_ID, 1, lambda: None)
    writer.begin(-1, None, [])
    return PlanArchive(storage, JOB, JOB_ID), writer


def plans_of(archive: PlanArchive, storage: MemoryFileSystem) -> list[str]:
    return [path for path in storage.files if path.startswith(archive.of_epoch(1)) and not path.endswith("/begin")]


def test_a_job_that_never_takes_a_checkpoint_packs_its_plans() -> None:
    """With ``interval=None`` nothing completes, and the job goes on for years."""
    storage = MemoryFileSystem()
    archive, writer = first_epoch(storage)
    plans = [PlannedBatch(batch, {f"offsets/{batch}": f"v1\n{batch}"}) for batch in range(3_500)]
    most = 0
    for plan in plans:
        writer.append([plan])
        most = max(most, len(plans_of(archive, storage)))
    assert most <= 1_003
    assert len(plans_of(archive, storage)) == 503
    assert archive.newest_after(-1) == plans
    writer.pack([])
    assert len(plans_of(archive, storage)) == 4
    assert archive.newest_after(-1) == plans


def test_long_plans_are_packed_sooner() -> None:
    """A plan of a source of files names each of its files, and the plans that are not packed are in memory."""
    storage = MemoryFileSystem()
    archive, writer = first_epoch(storage)
    plans = [PlannedBatch(batch, {f"offsets/{batch}": "v1", f"sources/0/{batch}": "x" * 2**22}) for batch in range(10)]
    for plan in plans:
        writer.append([plan])
    assert len(plans_of(archive, storage)) == 4
    assert archive.newest_after(-1) == plans


def test_a_storage_that_does_not_take_the_packed_file_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryFileSystem()
    archive, writer = first_epoch(storage)
    plans = [PlannedBatch(batch, {f"offsets/{batch}": "v1"}) for batch in range(1_001)]
    for plan in plans[:-1]:
        writer.append([plan])

    def refuse(path: str, _: bytes) -> None:
        raise StorageError(f"{path} is not taken.")

    with monkeypatch.context() as away:
        away.setattr(storage, "create", refuse)
        with pytest.raises(StorageError):
            writer.append(plans[-1:])
    assert len(plans_of(archive, storage)) == 1_000
    writer.append(plans[-1:])
    assert len(plans_of(archive, storage)) == 2
    assert archive.newest_after(-1) == plans


def old_form(data: bytes) -> bytes:
    """A file as the first release wrote it: without the line that tells its place."""
    body = data.rpartition(b"sha256:")[0].partition(b"\n")[2]
    return body + b"sha256:" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def test_files_of_the_first_release_are_read(storage: MemoryFileSystem) -> None:
    expected = PlanArchive(storage, JOB, JOB_ID).after(metadata(1, 0))
    for path, data in list(storage.files.items()):
        assert json.loads(data.partition(b"\n")[0]) == {"version": 2, "place": path}
        storage.files[path] = old_form(data)
        assert b"place" not in storage.files[path]
    archive = PlanArchive(storage, JOB, JOB_ID)
    assert archive.after(metadata(1, 0)) == expected
    assert archive.batches() == [0, 1, 2, 3]
    assert archive.newest_batch() == 2


def test_a_file_in_the_place_of_another_is_found(storage: MemoryFileSystem) -> None:
    """Each is whole, and of this job; it tells of another epoch, or of another start of the line."""
    sound = dict(storage.files)
    for path, data in sound.items():
        for other in sound.keys() - {path}:
            storage.files[path] = sound[other]
            with pytest.raises(CorruptRecord, match=f"{path}, which tells how .* written as '{other}'") as caught:
                PlanArchive(storage, JOB, JOB_ID).after(metadata(1, 0))
            assert "replay_to: none" in caught.value.hint
        storage.files[path] = data


def test_plans_of_other_batches_than_the_name_says_are_found_in_the_old_form_too(storage: MemoryFileSystem) -> None:
    name = next(path for path in storage.files if "-0000000000" in path.rpartition("/")[2])
    storage.files[name.replace("000000000000-000000000003", "000000000004-000000000005")] = old_form(
        storage.files.pop(name)
    )
    with pytest.raises(CorruptRecord, match="plans of other batches than its name says"):
        PlanArchive(storage, JOB, JOB_ID).after(metadata(1, 0))


def change_begin(**members: Any) -> Callable[[list[Any]], object]:
    return lambda lines: lines[1].update(members)


def change_plan(**members: Any) -> Callable[[list[Any]], object]:
    return lambda lines: lines[2].update(members)


def without(member: str) -> Callable[[list[Any]], object]:
    return lambda lines: lines[1].pop(member)


NO_BATCH: list[Any] = [-2, True, "1", 1.0, None, 2**63]
NO_EPOCH_BEFORE: list[Any] = [2, 3, -1, True, "1", 1.0, []]
NO_FILES: list[Any] = [[], None, {}, {"offsets/3": "v1"}, {"offsets/2": 3}]


@pytest.mark.parametrize(
    "change",
    [
        *[change_begin(after=value) for value in NO_BATCH],
        *[change_begin(previous=value) for value in NO_EPOCH_BEFORE],
        without("after"),
        without("previous"),
        lambda lines: lines.__setitem__(1, [1]),
        lambda lines: lines.__setitem__(1, None),
        *[change_plan(batch=value) for value in (*NO_BATCH, -1, 3)],
        *[change_plan(files=value) for value in NO_FILES],
        *[
            change_plan(files={"offsets/2": "v1", name: "x"})
            for name in ("/etc/x", "../x", "a/../../x", "", ".", "a//b", "a\0", "x" * 300, "\ud800")
        ],
        change_plan(files={"offsets/2": "\ud800"}),
        lambda lines: lines.__setitem__(2, 7),
        lambda lines: lines[0].update(version=3),
        lambda lines: lines[0].pop("place"),
        lambda lines: lines.__setitem__(0, 7),
        lambda lines: lines.__delitem__(slice(0, None)),
        lambda lines: lines.__delitem__(slice(1, None)),
    ],
)
def test_what_says_what_cannot_be_is_refused(storage: MemoryFileSystem, change: Callable[[list[Any]], object]) -> None:
    """Whoever writes to the storage can compute a checksum, too."""
    path = PlanArchive(storage, JOB, JOB_ID).of_epoch(2) + "/begin"
    lines = [json.loads(line) for line in storage.files[path].splitlines()[:-1]]
    change(lines)
    body = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    storage.files[path] = body + b"sha256:" + hashlib.sha256(body).hexdigest().encode() + b"\n"
    with pytest.raises(CorruptRecord, match=path) as caught:
        PlanArchive(storage, JOB, JOB_ID).after(metadata(1, 0))
    assert "replay_to: none" in caught.value.hint


@pytest.mark.parametrize(
    "body", [b"", b"\n", b"\xff\n", b"{\n", b"[" * 100_000 + b"\n", b'{"after": NaN, "previous": 1}\n']
)
def test_what_is_no_json_is_refused(storage: MemoryFileSystem, body: bytes) -> None:
    path = PlanArchive(storage, JOB, JOB_ID).of_epoch(2) + "/begin"
    storage.files[path] = body + b"sha256:" + hashlib.sha256(body).hexdigest().encode() + b"\n"
    with pytest.raises(CorruptRecord, match=path):
        PlanArchive(storage, JOB, JOB_ID).newest_after(-1)


def test_a_name_that_stands_for_a_million_million_batches_is_refused(storage: MemoryFileSystem) -> None:
    archive = PlanArchive(storage, JOB, JOB_ID)
    for name in ("000000000000-999999999999-00000000", "000000000009-000000000008-00000000"):
        storage.files[f"{archive.of_epoch(1)}/{name}"] = b""
        with pytest.raises(CorruptRecord, match=f"{name}.* plans of batches"):
            archive.batches()
        del storage.files[f"{archive.of_epoch(1)}/{name}"]


@pytest.mark.parametrize("own_began", [True, False], ids=["the start that made it", "the start after that"])
@pytest.mark.parametrize("kind", ["rescale", "moved"])
def test_a_changed_copy_begins_a_line(own_began: bool, kind: str) -> None:
    """Batches after it have the numbers of others, on the line of the checkpoint that was changed."""
    machine = Archive()
    archive, plan = machine.archive, machine.plan
    machine.writer(1).begin(-1, None, [])
    old = [plan(batch) for batch in range(4)]
    writer = machine.writer(1)
    writer.append(old)
    before, changed = metadata(1, 0), replace(metadata(2, 1, 2), kind=kind)
    assert (archive.line_through(changed), archive.after(changed)) == (None, [])

    began = 2 if own_began else 3
    machine.writer(began).begin(1, archive.line_through(changed), [], changed.reference)
    new = [plan(batch) for batch in (2, 3)]
    machine.writer(began).append(new)
    assert (archive.line_through(changed), archive.after(changed)) == (began, new)
    assert (archive.line_through(before), archive.after(before)) == (1, old[1:])
    assert archive.after(metadata(1, 1)) == old[2:], "the checkpoint that the copy is of"

    machine.writer(4).begin(0, archive.line_through(before), [])  # a rollback to before it
    machine.writer(4).append([plan(1), plan(2)])
    assert archive.line_through(changed) == began
    assert [found.batch for found in archive.after(before)] == [1, 2]


def test_a_changed_copy_that_nothing_began_with_is_on_no_line() -> None:
    """Its start died, and the next start changed another copy of the same checkpoint."""
    machine = Archive()
    left, taken = (replace(metadata(epoch, 1, epoch), kind="moved") for epoch in (2, 3))
    machine.writer(3).begin(1, None, [], taken.reference)
    plans = [machine.plan(2)]
    machine.writer(3).append(plans)
    assert (machine.archive.line_through(taken), machine.archive.after(taken)) == (3, plans)
    assert (machine.archive.line_through(left), machine.archive.after(left)) == (None, [])

    machine.writer(4).begin(1, None, [])  # as a release wrote it that did not tell from what
    assert machine.archive.line_through(left) == 4
