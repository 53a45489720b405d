"""What a rollback of an Iceberg table takes back: a model of a table, written by a job and by others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.sinks.iceberg.lineage import (
    History,
    Mark,
    Rollback,
    Snapshot,
    name_of_newest,
    newest_property,
    plan_rollback,
    recorded_newest,
)

OURS, OTHERS = "orders", "somebody"
Rows = frozenset[tuple[str, int]]


@dataclass
class Table:
    """Files of rows, by snapshot. Rows are told by their writer and a number."""

    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    files: dict[int, Mapping[int, Rows]] = field(default_factory=dict)
    head: int | None = None
    numbers: int = 0
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def history(self) -> History:
        def recorded(job: str) -> Snapshot | None:
            value = self.properties.get(name_of_newest(job))
            return None if value is None else recorded_newest(value)

        return History(self.head, self.snapshots.get, recorded)

    @property
    def now(self) -> Mapping[int, Rows]:
        return {} if self.head is None else self.files[self.head]

    def rows(self, writer: str, at: int | None) -> Rows:
        files = {} if at is None else self.files[at]
        return frozenset(row for rows in files.values() for row in rows if row[0] == writer)

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def commit(self, operation: str, files: Mapping[int, Rows], job: str = "", parent: int | None = None) -> None:
        parent = self.head if parent is None else parent
        before = {} if parent is None else self.files[parent]
        changed = {"added": len(files.keys() - before.keys()), "deleted": len(before.keys() - files.keys())}
        summary = {f"{what}-data-files": str(count) for what, count in changed.items() if count}
        mark = Mark("token", 1, 0).summary(job) if job else {}
        self.head = self.number()
        self.snapshots[self.head] = Snapshot(self.head, parent, operation, {**summary, **mark})
        self.files[self.head] = files
        if job:
            self.properties.update([newest_property(mark, self.head)])

    def append(self, writer: str) -> None:
        row = frozenset({(writer, self.number())})
        self.commit("append", {**self.now, self.number(): row}, OURS if writer == OURS else "")

    def compact(self) -> None:
        self.commit("replace", {self.number(): frozenset().union(*self.now.values())})

    def edit(self) -> None:
        """Somebody deletes the oldest row that is there."""
        if not any(self.now.values()):
            return
        oldest = min((row for rows in self.now.values() for row in rows), key=lambda row: row[1])
        files = {(self.number() if oldest in rows else file): rows - {oldest} for file, rows in self.now.items()}
        self.commit("overwrite", files)

    def expire(self, count: int) -> None:
        for identifier in sorted(self.snapshots.keys() - {self.head})[:count]:
            del self.snapshots[identifier]

    def back(self, target: int | None) -> Rollback:
        """As the sink does: make another snapshot current, or delete what is there because of the job's snapshots."""
        plan = plan_rollback(self.history, target, OURS)
        if not plan.undone:
            files = self.now if plan.to is None else self.files[plan.to]
            self.commit("append", files, OURS, self.head if plan.to is None else plan.to)
            return plan
        added: set[int] = set()
        for snapshot in plan.undone:
            assert snapshot.identifier in self.snapshots
            before = {} if snapshot.parent is None else self.files[snapshot.parent]
            after = self.files[snapshot.identifier]
            removed = before.keys() - after.keys()
            if not removed <= added:
                raise SinkMismatch("a file would have to come back", hint="")
            added = (added | (after.keys() - before.keys())) - removed
        assert added <= self.now.keys(), "Iceberg would refuse to delete a file that is not there"
        self.commit("delete", {file: rows for file, rows in self.now.items() if file not in added}, OURS)
        return plan


STEPS = st.one_of(
    st.sampled_from(["batch", "batch", "append", "compact", "edit"]),
    st.tuples(st.just("expire"), st.integers(1, 3)),
    *[st.tuples(st.just("back"), st.integers(0, 4))] * 2,
)


@settings(max_examples=400)
@given(st.lists(STEPS, max_size=16))
def test_a_rollback_takes_back_the_jobs_rows_alone_or_is_refused(steps: list[str | tuple[str, int]]) -> None:
    table = Table()
    positions: list[int | None] = [None]
    edited = False
    for step in steps:
        name, number = step if isinstance(step, tuple) else (step, 0)
        if name == "batch":
            table.append(OURS)
        elif name == "append":
            table.append(OTHERS)
        elif name == "compact":
            table.compact()
        elif name == "edit":
            edited = True
            table.edit()
        elif name == "expire":
            table.expire(number)
        else:
            target = positions[number % len(positions)]
            before = dict(table.now), table.head
            try:
                table.back(target)
            except SinkMismatch:
                assert (dict(table.now), table.head) == before
                continue
            assert table.rows(OTHERS, table.head) == table.rows(OTHERS, before[1])
            if not edited:
                assert table.rows(OURS, table.head) == table.rows(OURS, target)
            else:
                assert table.rows(OURS, table.head) <= table.rows(OURS, target)
        if name in {"batch", "back"}:
            positions.append(table.head)
        newest, mark = table.history.newest_of(OURS)
        assert newest == positions[-1], "whatever has expired, the job's newest snapshot is known"
        assert (mark is None) == (newest is None)


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
    table.append(OTHERS)
    with pytest.raises(SinkMismatch, match=rf"in snapshot {table.head} \(append\)"):
        table.back(third)
    del table.snapshots[first]
    with pytest.raises(SinkMismatch, match=f"does not have snapshot {first} any more"):
        table.back(third)
    del table.snapshots[third]
    with pytest.raises(SinkMismatch, match=f"does not have snapshot {third} any more"):
        table.back(third)
