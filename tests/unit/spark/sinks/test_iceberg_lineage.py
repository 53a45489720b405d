"""What a rollback of an Iceberg table takes back: a model of a table, written by two jobs and by others."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.sinks.iceberg.lineage import (
    NOTHING,
    History,
    Mark,
    Snapshot,
    name_of_newest,
    newest_property,
    recorded_newest,
)
from dagster_ckpt.spark.sinks.iceberg.rollback import (
    Needed,
    Rollback,
    files_to_delete,
    plan_rollback,
    plan_rollback_to_nothing,
)

OURS, THEIRS, OTHERS = "orders", "payments", "somebody"
JOBS = (OURS, THEIRS)
Rows = frozenset[tuple[str, int]]


@dataclass
class Table:
    """Files of rows, by snapshot. Rows are told by their writer and a number.

    Attributes:
        holds: by job, the snapshot whose rows of the job the table has, ``None`` for none.
        first: by job and snapshot, from where on all is that the job wrote after it: the claim or the batch after it.
        parents: of all snapshots, the expired ones too.
        tells: whether marks tell what the job had before, as those of early builds do not.
    """

    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    files: dict[int, Mapping[int, Rows]] = field(default_factory=dict)
    head: int | None = None
    numbers: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    lineage: str = ""
    made: int = 0
    kept: set[int | None] = field(default_factory=set)
    holds: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(JOBS))
    first: dict[tuple[str, int | None], int] = field(default_factory=dict)
    parents: dict[int, int | None] = field(default_factory=dict)
    tells: bool = True

    @property
    def history(self) -> History:
        def recorded(job: str) -> Snapshot | None:
            value = self.properties.get(name_of_newest(job))
            return None if value is None else recorded_newest(value)

        sequences = [snapshot.sequence for snapshot in self.snapshots.values()]
        return History(self.head, self.snapshots.get, recorded, lambda: sequences)

    @property
    def now(self) -> Mapping[int, Rows]:
        return {} if self.head is None else self.files[self.head]

    def rows(self, writer: str, at: int | None) -> Rows:
        files = {} if at is None else self.files[at]
        return frozenset(row for rows in files.values() for row in rows if row[0] == writer)

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def commit(
        self,
        operation: str,
        files: Mapping[int, Rows],
        job: str = "",
        parent: int | None = None,
        *,
        batch: int = 0,
        held: int | None = None,
        before: int | None = None,
    ) -> None:
        parent = self.head if parent is None else parent
        there = {} if parent is None else self.files[parent]
        changed = {"added": len(files.keys() - there.keys()), "deleted": len(there.keys() - files.keys())}
        summary = {f"{what}-data-files": str(count) for what, count in changed.items() if count}
        mark = Mark("token", 1, batch, self.lineage, held, before).summary(job) if job else {}
        self.head = self.number()
        self.made += 1
        self.snapshots[self.head] = Snapshot(self.head, parent, operation, {**summary, **mark}, self.made)
        self.files[self.head], self.parents[self.head] = files, parent
        if job:
            self.properties.update([newest_property(mark, self.head)])

    def changed(self, snapshot: Snapshot) -> tuple[Mapping[str, int], Collection[str]]:
        """The files that a snapshot added, and those that it removed."""
        assert snapshot.identifier in self.snapshots
        before = {} if snapshot.parent is None else self.files[snapshot.parent]
        after = self.files[snapshot.identifier]
        added, removed = after.keys() - before.keys(), before.keys() - after.keys()
        return {str(file): file for file in added}, [str(file) for file in removed]

    def append(self, writer: str) -> None:
        files = {**self.now, self.number(): frozenset({(writer, self.number())})}
        if writer not in JOBS:
            return self.commit("append", files)
        holds = self.holds[writer]
        self.commit("append", files, writer, before=_told(holds) if self.tells else None)
        self.first[writer, holds] = self.holds[writer] = self.head or 0
        return None

    def compact(self, writers: Collection[str] = (*JOBS, OTHERS)) -> None:
        """Make one file of those that have no row of anybody but ``writers``; of none, as a rewrite of manifests."""
        small = {file for file, rows in self.now.items() if {writer for writer, _ in rows} <= set(writers)}
        rows = frozenset(row for file in small for row in self.now[file])
        others = {file: rows for file, rows in self.now.items() if file not in small}
        self.commit("replace", {**others, self.number(): rows} if small else others)

    def edit(self) -> None:
        """Somebody deletes the oldest row that is there."""
        if not any(self.now.values()):
            return
        oldest = min((row for rows in self.now.values() for row in rows), key=lambda row: row[1])
        files = {(self.number() if oldest in rows else file): rows - {oldest} for file, rows in self.now.items()}
        self.commit("overwrite", files)

    def expire(self, count: int) -> None:
        for identifier in sorted(self.snapshots.keys() - {self.head, *self.kept})[:count]:
            del self.snapshots[identifier]

    def back(self, target: int | None, job: str = OURS) -> Rollback:
        """As the sink does: make another snapshot current, or delete what is there because of the job's snapshots."""
        plan = plan_rollback(self.history, target, job)
        held = _told(target) if self.tells else None
        if not plan.undone:
            files = self.now if plan.to is None else self.files[plan.to]
            self.commit("append", files, job, self.head if plan.to is None else plan.to, held=held)
        else:
            added = set(files_to_delete(plan, self.changed))
            assert added <= self.now.keys(), "Iceberg would refuse to delete a file that is not there"
            files = {file: rows for file, rows in self.now.items() if file not in added}
            self.commit("delete", files, job, held=held)
        self.holds[job], self.first[job, target] = target, self.head or 0
        return plan

    def since(self, target: int | None, job: str) -> list[int] | None:
        """All snapshots since the job had the rows of a target, expired ones too; ``None`` in no line from there."""
        line, first = self.line(), self.first.get((job, target))
        return line[: line.index(first) + 1] if first in line else None

    def line(self) -> list[int]:
        """The current snapshot and all that it comes from, expired ones too."""
        line, at = [], self.head
        while at is not None:
            line.append(at)
            at = self.parents[at]
        return line

    def keep(self, needed: Iterable[int]) -> None:
        """As the branch does: the line from the first of these that is in it."""
        line = list(itertools.takewhile(self.snapshots.__contains__, self.line()))
        oldest = next((each for each in needed if each in line), line[0])
        self.kept = set(line[: line.index(oldest) + 1])


def _told(snapshot: int | None) -> int:
    return NOTHING if snapshot is None else snapshot


STEPS = st.one_of(
    st.tuples(st.sampled_from(["batch", "batch", "append", "compact", "tidy", "edit"]), st.sampled_from(JOBS)),
    st.tuples(st.just("expire"), st.integers(1, 3)),
    st.tuples(st.just("tag"), st.sampled_from(JOBS)),
    st.tuples(st.just("idle"), st.sampled_from(JOBS)),
    *[st.tuples(st.sampled_from(JOBS), st.integers(0, 4))] * 2,
)


#: Without what may be in the way of a rollback.
ONLY_ROWS = st.tuples(st.sampled_from(["batch", "batch", "append", "tidy", *JOBS, *JOBS]), st.sampled_from(JOBS))


@settings(max_examples=600)
@given(
    st.one_of(st.lists(STEPS, max_size=20), st.lists(ONLY_ROWS, min_size=8, max_size=30)),
    st.one_of(st.just(0), st.integers(0, 20)),
)
def test_a_rollback_takes_back_the_jobs_rows_alone_or_is_refused(
    steps: list[tuple[str, str | int]], untold: int
) -> None:
    """Refused is only what others changed or expired since the job's next batch, or a checkpoint that was left behind.

    And a job's compacted files. The first steps may be those of an early build, whose marks tell less.
    """
    table = Table()
    positions: dict[str, list[int | None]] = {job: [None] for job in JOBS}
    line: dict[str, list[int | None]] = {job: [None] for job in JOBS}
    idle: dict[str, int | None] = dict.fromkeys(JOBS)
    last = dict(idle)
    edited = disturbed = False
    for number_of_step, (name, detail) in enumerate(steps):
        table.tells = number_of_step >= untold
        job = name if name in JOBS else str(detail)
        if name == "batch":
            table.append(job)
        elif name == "append":
            table.append(OTHERS)
        elif name == "compact":
            disturbed = True
            table.compact()
        elif name == "tidy":
            table.compact({OTHERS})
        elif name == "edit":
            edited = disturbed = True
            table.edit()
        elif name == "expire":
            disturbed = True
            table.expire(int(detail))
        elif name == "tag":
            table.kept.add(positions[job][-1])
        elif name == "idle":
            # A start without a batch leaves no checkpoint. The next one goes on whatever has expired, or others did.
            if idle[job] is not None and not untold:
                assert table.back(idle[job], job) == Rollback()
                last[job] = table.head
            elif (target := positions[job][-1]) is not None and table.history.newest_of(job)[0] == target:
                table.back(target, job)
                idle[job], last[job] = target, table.head
        else:
            # Of a job's own name, the checkpoint before its newest.
            number = -2 if isinstance(detail, str) else detail
            target = positions[job][number % len(positions[job])]
            before = dict(table.now), table.head
            try:
                table.back(target, job)
            except SinkMismatch:
                assert (dict(table.now), table.head) == before
                assert disturbed or target not in line[job], "nothing was in the way"
                since = table.since(target, job)
                assert untold or since is None or any(_is_in_the_way(table, each) for each in since), (
                    "nothing was in the way"
                )
                continue
            for other in {*JOBS, OTHERS} - {job}:
                assert table.rows(other, table.head) == table.rows(other, before[1])
            if not edited:
                assert table.rows(job, table.head) == table.rows(job, target)
            else:
                assert table.rows(job, table.head) <= table.rows(job, target)
            del line[job][line[job].index(target) + 1 if target in line[job] else 1 :]
        if name in {"batch", *JOBS}:
            idle[job], last[job] = None, table.head
            positions[job].append(table.head)
            line[job].append(table.head)
        for each in JOBS:
            newest, mark = table.history.newest_of(each)
            assert newest == last[each], "whatever has expired, the job's newest snapshot is known"
            assert (mark is None) == (newest is None)


def _is_in_the_way(table: Table, identifier: int) -> bool:
    """Whether a rollback past a snapshot may be refused: expired, or not of somebody who appends."""
    snapshot = table.snapshots.get(identifier)
    return snapshot is None or snapshot.operation != "append"


#: In an idle time, others append twice and expire what they can.
AROUND_AN_IDLE_TIME = st.one_of(
    st.sampled_from(["batch", "checkpoint", "checkpoint", "append", "idle time", "expire", "restart", "drop"]),
    st.integers(0, 3),
)


@settings(max_examples=600)
@given(st.lists(AROUND_AN_IDLE_TIME, min_size=6, max_size=25))
def test_the_branch_keeps_what_retained_checkpoints_need(steps: list[str | int]) -> None:
    """Through idle times, where others expire all that they can. A number is a rollback.

    Out of reach is only what the job had before a lost snapshot, except what it had right before: a snapshot is lost
    if it expires between the job's newest batch, where the branch is, and the job's next one.
    """
    table, needed = Table(), Needed(OURS)
    began: int | None = None
    retained: list[int | None] = []
    reachable: list[int | None] = [None]
    table.back(None)

    def is_lost() -> bool:
        since_the_branch = itertools.takewhile(lambda each: each not in table.kept, table.line())
        return any(each not in table.snapshots for each in since_the_branch)

    for step in steps:
        holds = table.holds[OURS]
        if step in {"batch", "checkpoint"}:
            reachable = [each for each in reachable if each == holds or not is_lost()]
            history = table.history
            table.append(OURS)
            table.keep(needed.of([*retained, began], history))
            needed.written_after(holds)
            reachable.append(table.head)
            if step == "checkpoint":
                retained.append(table.head)
        elif step in {"append", "expire", "idle time"}:
            for _ in range({"append": 1, "expire": 0}.get(str(step), 2)):
                table.append(OTHERS)
            table.expire(0 if step == "append" else len(table.snapshots))
        elif step == "drop":
            del retained[:1]
        else:
            targets = [each for each in retained if each in reachable]
            if not targets and began in reachable:
                targets = [began]
            target = holds if step == "restart" or is_lost() or not targets else targets[int(step) % len(targets)]
            others = table.rows(OTHERS, table.head)
            table.back(target)
            assert table.rows(OTHERS, table.head) == others
            assert table.rows(OURS, table.head) == table.rows(OURS, target)
            began, needed = target, Needed(OURS)
            del reachable[reachable.index(target) + 1 :]


def test_what_is_not_refused() -> None:
    """A job alone goes anywhere; beside rows that others have appended it goes back, also past its expired position."""
    table = Table()
    for _ in range(3):
        table.append(OURS)
    first, second, third = table.snapshots
    assert table.back(first) == Rollback(to=first)
    assert table.back(third) == Rollback(to=third)
    assert table.back(None).undone == tuple(table.snapshots[each] for each in (first, second, third))
    assert table.back(second) == Rollback(to=second)
    table.append(OTHERS)
    table.edit()
    table.append(OTHERS)
    assert table.back(second) == Rollback(), "nothing of the job came after it"
    second = table.head or 0
    table.append(OURS)
    newest = table.snapshots[table.head or 0]
    table.append(OTHERS)
    table.expire(2)
    assert table.back(second).undone == (newest,)
    assert table.rows(OURS, table.head) == table.rows(OURS, second)


def test_a_job_that_writes_seldom_goes_on_after_its_snapshots_have_expired() -> None:
    """Others compact and append daily, and only what they did last is left of the table's history."""
    table = Table()
    table.append(OURS)
    first = table.head
    table.append(OURS)
    newest = table.head
    table.append(OTHERS)
    table.compact()
    table.expire(len(table.snapshots))
    assert table.history.newest_of(OURS) == (newest, Mark("token", 1, 0))
    with pytest.raises(SinkMismatch, match="any more"):
        table.back(first)
    rows = table.rows(OURS, newest)
    assert table.back(newest) == Rollback(), "nothing of the job came after it"
    assert table.rows(OURS, table.head) == rows


def test_a_job_that_starts_again_and_again_without_a_batch_goes_on_after_its_claims_have_expired() -> None:
    """Each start claims the table, and takes no checkpoint. The next batch is taken back, as its mark tells."""
    table = Table()
    table.append(OURS)
    position = table.head
    for _ in range(3):
        assert table.back(position) == Rollback()
        table.append(OTHERS)
        table.expire(len(table.snapshots))
    others = table.head
    rows = table.rows(OURS, position)
    assert table.rows(OURS, table.head) == rows
    table.append(OURS)
    assert table.back(position) == Rollback(to=others)
    assert table.rows(OURS, table.head) == rows
    table.append(OURS)
    newest = table.snapshots[table.head or 0]
    table.append(OTHERS)
    assert table.back(position) == Rollback(undone=(newest,))
    assert table.rows(OURS, table.head) == rows


def test_a_table_that_was_set_back_is_told_from_one_whose_newest_snapshot_is_kept() -> None:
    """By whether a snapshot that was made after the kept one has expired."""
    table = Table()
    table.append(OTHERS)
    right = table.head
    table.append(OURS)
    ours = table.head
    table.append(OTHERS)
    table.head = right
    table.append(OTHERS)
    table.expire(1)
    assert table.history.newest_of(OURS) == (right, None), "set back, and what it was set back to has expired"
    table.head = ours
    for _ in range(2):
        table.append(OTHERS)
    del table.snapshots[table.snapshots[table.head or 0].parent or 0]
    assert table.history.newest_of(OURS) == (ours, Mark("token", 1, 0))


def test_a_line_that_was_left_is_gone_back_to_only_if_nobody_else_wrote_since() -> None:
    table = Table()
    table.append(OTHERS)
    table.append(OURS)
    first = table.head
    table.append(OURS)
    third = table.head
    assert first is not None
    assert third is not None
    table.back(first)
    assert table.back(third) == Rollback(to=third), "what others did before the lines part stays in both"
    table.back(first)
    newest = table.head
    table.append(OTHERS)
    with pytest.raises(SinkMismatch, match=rf"in snapshot {table.head} \(append\)") as refused:
        table.back(third)
    assert f"undo it, and all that came after it, by CALL ... set_current_snapshot to {newest}" in refused.value.hint
    table.head = newest
    table.append(THEIRS)
    with pytest.raises(SinkMismatch, match=rf"in snapshot {table.head} \(append\)") as refused:
        table.back(third)
    assert "set_current_snapshot" not in refused.value.hint, "the other job would not go on"
    del table.snapshots[first]
    with pytest.raises(SinkMismatch, match=f"does not have snapshot {first} any more"):
        table.back(third)
    del table.snapshots[third]
    with pytest.raises(SinkMismatch, match=f"does not have snapshot {third} any more"):
        table.back(third)


def test_a_rollback_of_another_job_is_in_nobodys_way() -> None:
    """The other job has deleted its own files, because somebody had appended since its checkpoint."""
    table = Table()
    table.append(THEIRS)
    theirs = table.head
    table.append(OURS)
    ours = table.head
    table.append(THEIRS)
    table.append(OURS)
    newest = table.snapshots[table.head or 0]
    assert table.back(theirs, THEIRS).undone
    assert table.snapshots[table.head or 0].operation == "delete"
    assert table.back(ours).undone == (newest,)
    assert table.rows(THEIRS, table.head) == table.rows(THEIRS, theirs)
    assert table.rows(OURS, table.head) == table.rows(OURS, ours)


@pytest.mark.parametrize("broken", [{}, {"dagster_ckpt.job": OURS}], ids=["no job", "a mark that is no mark"])
def test_a_delete_of_a_writer_that_is_no_job_is_refused(broken: Mapping[str, str]) -> None:
    table = Table()
    table.append(OURS)
    ours = table.head
    table.append(OURS)
    table.append(OTHERS)
    newest, theirs = table.head, table.rows(OTHERS, table.head)
    table.commit("delete", {file: rows for file, rows in table.now.items() if rows != theirs})
    head = table.head or 0
    deleted = table.snapshots[head]
    table.snapshots[head] = replace(deleted, summary={**deleted.summary, **broken})
    with pytest.raises(SinkMismatch, match=rf"changed the table after the checkpoint, in snapshot {head} ") as refused:
        table.back(ours)
    assert (f"set_current_snapshot to {newest}" in refused.value.hint) is (not broken)


@pytest.mark.parametrize("compacted", [(), (OTHERS,), (THEIRS, OTHERS)], ids=str)
def test_a_compaction_of_other_files_is_kept(compacted: tuple[str, ...]) -> None:
    """Whether the checkpoint's own snapshot is there or not."""
    table = Table()
    table.append(OURS)
    ours = table.head
    table.append(OTHERS)
    table.append(THEIRS)
    table.append(OURS)
    newest = table.snapshots[table.head or 0]
    table.compact(compacted)
    table.append(OURS)
    undone = (newest, table.snapshots[table.head or 0])
    table.append(OTHERS)
    table.expire(1)
    now = dict(table.now)
    assert table.back(ours).undone == undone
    assert table.now.items() < now.items(), "no file was written again"
    assert table.rows(OURS, table.head) == table.rows(OURS, ours)


def test_a_compaction_of_files_since_the_checkpoint_is_refused_by_name() -> None:
    table = Table()
    table.append(OURS)
    first = table.head
    table.append(OTHERS)
    table.append(OURS)
    newest = table.head
    table.compact()
    compaction = table.head
    table.append(OURS)
    later = table.head
    table.append(OTHERS)
    theirs = table.head
    table.append(OURS)
    with pytest.raises(SinkMismatch, match=rf"rewrote files in snapshot {compaction} \(replace\)") as refused:
        table.back(first)
    assert f"set_current_snapshot to {newest}" in refused.value.hint
    assert table.back(later) == Rollback(to=theirs), "a checkpoint that was taken after the compaction"
    assert table.rows(OURS, table.head) == table.rows(OURS, later)


def test_a_batch_is_the_same_when_it_is_written_again() -> None:
    """The mark of the first try tells what was there before it."""
    assert Mark("start", 3, 7, before=5) == Mark("start", 3, 7, before=6) != Mark("start", 3, 8, before=5)


def test_a_first_batch_is_taken_back_though_the_claim_has_expired() -> None:
    """Of a start from nothing, and of one that went back to the table before its first snapshot."""
    table = Table(lineage="first")
    table.append(OTHERS)
    table.commit("append", table.now, OURS, batch=-1, held=NOTHING)
    table.append(OTHERS)
    table.append(OTHERS)
    table.expire(len(table.snapshots))
    right = table.head
    table.append(OURS)
    for plan in (plan_rollback_to_nothing(table.history, OURS, "first"), plan_rollback(table.history, None, OURS)):
        assert plan == Rollback(to=right)
    newest = table.snapshots[table.head or 0]
    table.append(OTHERS)
    assert plan_rollback_to_nothing(table.history, OURS, "first").undone == (newest,)


def test_a_lineage_from_nothing_takes_back_what_is_its_own() -> None:
    """Marks without a lineage do not tell, and what came after the last start from nothing is taken back."""
    table = Table(lineage="first")
    table.commit("append", {}, OURS, batch=-1)
    claim = table.head
    table.append(OURS)
    assert plan_rollback_to_nothing(table.history, OURS, "first") == Rollback(to=claim)
    assert plan_rollback_to_nothing(table.history, OURS, "second") == Rollback()
    table.edit()
    with pytest.raises(SinkMismatch, match="overwrite"):
        plan_rollback_to_nothing(table.history, OURS, "first")
    assert plan_rollback_to_nothing(table.history, OURS, "second") == Rollback()
    table.lineage = "second"
    table.commit("append", table.now, OURS, batch=-1)
    claim = table.head
    table.append(OURS)
    assert plan_rollback_to_nothing(table.history, OURS, "second") == Rollback(to=claim)
    table.append(OTHERS)
    table.expire(len(table.snapshots))
    assert table.history.newest_of(OURS)[1] == Mark("token", 1, 0, "second")
    with pytest.raises(SinkMismatch, match="any more"):
        plan_rollback_to_nothing(table.history, OURS, "second")
    assert plan_rollback_to_nothing(table.history, OURS, "third") == Rollback()

    older = Table()
    older.commit("append", {}, OURS, batch=-1)
    claim = older.head
    older.append(OURS)
    assert plan_rollback_to_nothing(older.history, OURS, "first") == Rollback(to=claim)
    assert plan_rollback_to_nothing(Table().history, OURS, "first") == Rollback()


@pytest.mark.parametrize(
    ("steps", "holds"),
    [
        ([], False),
        ([("another", True, False)], False),
        ([("job", False, True)], False),
        ([("job", False, True), ("another", True, False)], False),
        ([("job", False, True), ("job", False, False)], False),
        ([("job", False, True), ("job", True, False)], True),
        ([("job", True, True)], True),
        ([("job", False, True), ("job", True, False), ("job", False, False), ("another", True, False)], True),
        ([("job", False, False)], True),
    ],
)
def test_a_job_that_has_only_claimed_a_table_holds_no_rows(steps: list[tuple[str, bool, bool]], holds: bool) -> None:
    """Each snapshot is of a job, adds a file or not, and is the first claim of the job or not."""
    snapshots = {}
    for number, (job, adds, is_first) in enumerate(steps, start=1):
        added = {"added-data-files": "1"} if adds else {"added-data-files": "0"}
        summary = Mark("start", 1, number).summary(job, is_first=is_first) | added
        snapshots[number] = Snapshot(number, number - 1 or None, "append", summary, number)
    history = History(len(steps) or None, snapshots.get, sequences=lambda: range(1, len(steps) + 1))
    assert history.may_hold_rows_of("job") is holds


def test_the_mark_of_a_snapshot_comes_back() -> None:
    for mark in (
        Mark("start", 3, 7),
        Mark("start", 3, -1, "lineage"),
        Mark("start", 3, 7, held=NOTHING),
        Mark("start", 3, 7, before=5),
    ):
        summary = mark.summary("job")
        found = Snapshot(1, None, "append", summary).mark("job")
        assert found == mark
        assert (found.held, found.before) == (mark.held, mark.before)
        assert Snapshot(1, None, "append", summary).mark("another") is None
        assert not Snapshot(1, None, "append", summary).is_first_claim
        assert Snapshot(1, None, "append", mark.summary("job", is_first=True)).is_first_claim
        assert Snapshot(1, None, "append", summary).job == "job"
    assert Snapshot(1, None, "append", {**summary, "added-data-files": "x"}).changes_files
    damaged = {name: value for name, value in summary.items() if value != "3"}
    assert Snapshot(1, None, "append", damaged).mark("job") is None
