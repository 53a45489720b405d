"""Which files a rollback of a Delta table changes: a model of a table, written by two jobs and by others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.errors import SinkMismatch
from dagster_ckpt.spark.sinks.delta.commits import (
    Commit,
    Rollback,
    claim_of,
    held_of,
    mark_of,
    marked_batch,
    marked_epoch,
    parse_commit,
    plan_rollback,
    refuse_replaced,
    was_reset,
)

OURS, THEIRS, OTHERS = "ours", "theirs", "others"
#: The two jobs, by whom a row is of.
APPS = {OURS: "dagster_ckpt:orders", THEIRS: "dagster_ckpt:returns"}
APP = APPS[OURS]
Data = tuple[tuple[str, int], ...]


def the_json(kind: str, path: str, *, changes: bool) -> str:
    shared = {"path": path, "dataChange": changes, "size": 1, "partitionValues": {}}
    return json.dumps({kind: {**shared, **({"deletionTimestamp": 7} if kind == "remove" else {"modificationTime": 7})}})


def marked(who: str, version: int) -> str:
    return json.dumps({"txn": {"appId": APPS[who], "version": version}})


def rolled_back(version: int, plan: Rollback) -> str:
    """What Delta's history calls the rollback of a job: see ``DeltaTable._operation``."""
    if not plan.removed and not plan.added:
        return json.dumps({"commitInfo": {"operation": "Manual Update", "operationParameters": {}}})
    return json.dumps({"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": version}}})


@dataclass
class Table:
    """Files of rows, and the log as Delta writes it. Rows are told by their writer and a number."""

    files: dict[str, Data] = field(default_factory=dict)
    log: list[Commit] = field(default_factory=list)
    live: list[dict[str, Data]] = field(default_factory=list)
    now: dict[str, Data] = field(default_factory=dict)
    #: The rows that somebody has deleted, at each version.
    edited: list[frozenset[tuple[str, int]]] = field(default_factory=list)
    numbers: int = 0
    compacted: bool = False
    #: Who rolled back, to which version, and in which.
    rollbacks: list[tuple[str, int, int]] = field(default_factory=list)
    #: By version of a RESTORE by hand, the version that it went to.
    restored: dict[int, int] = field(default_factory=dict)

    def commit(
        self,
        operation: str,
        removed: Sequence[str] = (),
        added: Sequence[Data] = (),
        *,
        changes: bool = True,
        who: str = OTHERS,
        gone: frozenset[tuple[str, int]] = frozenset(),
    ) -> None:
        lines = [json.dumps({"commitInfo": {"operation": operation}})]
        if who in APPS:
            lines.append(marked(who, len(self.log)))
        for path in removed:
            lines.append(the_json("remove", path, changes=changes))
            del self.now[path]
        for rows in added:
            path = f"part-{len(self.files)}"
            self.files[path] = self.now[path] = rows
            lines.append(the_json("add", path, changes=changes))
        self._end(lines, gone)

    def _end(self, lines: Sequence[str], gone: frozenset[tuple[str, int]] = frozenset()) -> None:
        self.log.append(parse_commit(len(self.log), "\n".join(lines)))
        self.live.append(dict(self.now))
        self.edited.append((self.edited[-1] if self.edited else frozenset()) | gone)

    def restore(self, version: int) -> None:
        """By hand."""
        lines = [json.dumps({"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": version}}})]
        target = self.live[version]
        lines += [the_json("remove", path, changes=True) for path in self.now.keys() - target.keys()]
        lines += [the_json("add", path, changes=True) for path in target.keys() - self.now.keys()]
        self.now = dict(target)
        self.restored[len(self.log)] = version
        self._end(lines)
        self.edited[-1] = self.edited[version]

    def write(self, who: str) -> None:
        self.numbers += 2
        rows = ((who, self.numbers), (who, self.numbers + 1))
        self.commit("WRITE", added=[rows], who=who)

    def optimize(self, choice: int) -> None:
        """Put the rows of some files into one file, or into two."""
        self.compacted = True
        chosen = [path for at, path in enumerate(self.now) if choice >> at & 1 == 0]
        rows = tuple(row for path in chosen for row in self.now[path])
        self.commit("OPTIMIZE", chosen, [rows] if choice % 3 else [rows[::2], rows[1::2]], changes=False)

    def describe(self) -> None:
        """As when somebody enables row tracking: each file is added once more, with the same rows."""
        lines = [json.dumps({"commitInfo": {"operation": "ROW TRACKING BACKFILL"}})]
        self._end([*lines, *(the_json("add", path, changes=False) for path in self.now)])

    def edit(self, choice: int) -> None:
        """Delete the first row of a file."""
        if holding := [path for path, rows in self.now.items() if rows]:
            path = holding[choice % len(holding)]
            row, *others = self.now[path]
            self.commit("DELETE", [path], [tuple(others)], gone=frozenset({row}))

    def roll_back(self, who: str, version: int) -> None:
        """As the sink of a job does it, checked against the rows that were there."""
        after = self.log[version + 1 :]
        edits = self.edited[-1] - self.edited[version]
        self.rollbacks.append((who, version, len(self.log)))
        try:
            plan = plan_rollback(after, APPS[who], 9)
        except SinkMismatch:
            by_hand = any(at > version > to for at, to in self.restored.items())
            changed = self.edited[version] != self.edited[-1] or len({*self.edited[version:]}) > 1
            assert by_hand or changed or self._a_job_goes_forward(), "refused only where somebody changed rows"
            return
        before = self.rows(self.now)
        lines = [rolled_back(version, plan), marked(who, len(self.log)), *plan.removed, *plan.added]
        for line in plan.removed:
            del self.now[json.loads(line)["remove"]["path"]]
        for line in plan.added:
            path = json.loads(line)["add"]["path"]
            assert path not in self.now
            self.now[path] = self.files[path]
        self._end(lines)
        now = self.rows(self.now)
        assert len(now) == len(set(now)), "no row twice"
        own = {row for row in self.rows(self.live[version]) if row[0] == who} - edits
        assert {row for row in now if row[0] == who} == own
        assert {row for row in now if row[0] != who} == {row for row in before if row[0] != who}

    def _a_job_goes_forward(self) -> bool:
        """Whether two jobs rolled back over a compaction, one of them to what it had left behind."""
        forward = any(
            who == earlier and before < version < at
            for who, version, _ in self.rollbacks
            for earlier, before, at in self.rollbacks
        )
        return forward and self.compacted and len({who for who, _, _ in self.rollbacks}) == len(APPS)

    @staticmethod
    def rows(live: Mapping[str, Data]) -> list[tuple[str, int]]:
        return [row for rows in live.values() for row in rows]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [OURS, OURS, THEIRS, OTHERS, "optimize", "describe", "edit", "restore", "roll back", "they roll back"]
        ),
        st.integers(min_value=0, max_value=99),
    ),
    max_size=14,
)


@given(STEPS, st.integers(min_value=0, max_value=99))
def test_a_rollback_takes_back_the_jobs_own_rows_and_no_others(steps: list[tuple[str, int]], last: int) -> None:
    """Also several rollbacks of two jobs, to before and after one another, with compaction and edits between them."""
    table = Table()
    table.write(OURS)
    for step, choice in [*steps, ("roll back", last)]:
        if step in {OURS, THEIRS, OTHERS}:
            table.write(step)
        elif step == "optimize":
            table.optimize(choice)
        elif step == "describe":
            table.describe()
        elif step == "edit":
            table.edit(choice)
        elif step == "restore":
            table.restore(choice % len(table.log))
        else:
            table.roll_back(OURS if step == "roll back" else THEIRS, choice % len(table.log))


def written(*steps: str) -> list[Commit]:
    table = Table()
    for step in steps:
        table.write(step)
    return table.log


def replaced(version: int, restored: int | None = None) -> Commit:
    parameters = {} if restored is None else {"version": restored}
    operation = {"operation": "WRITE" if restored is None else "RESTORE", "operationParameters": parameters}
    lines = [json.dumps({"commitInfo": operation}), the_json("remove", "part-0", changes=True)]
    return parse_commit(version, "\n".join(lines))


def test_rows_that_others_replaced_are_named() -> None:
    log = [*written(OURS, OURS), replaced(2)]
    with pytest.raises(SinkMismatch, match=r"version 2 \(WRITE\)") as refused:
        plan_rollback(log[1:], APP, 9)
    assert "TO VERSION AS OF 1" in refused.value.hint


def test_what_a_restore_by_hand_has_undone_does_not_count() -> None:
    log = [*written(OURS, OURS), replaced(2), replaced(3, restored=1)]
    (removed,) = plan_rollback(log[1:], APP, 9).removed
    assert json.loads(removed)["remove"]["path"] == "part-1"
    with pytest.raises(SinkMismatch, match=r"version 3 \(RESTORE\)"):
        plan_rollback([*log[1:2], replaced(2), replaced(3, restored=0)][2:], APP, 9)


def test_what_one_restore_by_hand_took_away_another_brings_back() -> None:
    table = Table()
    for writer in (OURS, OURS):
        table.write(writer)
    for version in (0, 1):
        table.restore(version)
    (removed,) = plan_rollback(table.log[1:], APP, 9).removed
    assert json.loads(removed)["remove"]["path"] == "part-1"


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85"])
def test_a_character_that_ends_a_line_elsewhere_ends_none_in_deltas_log(character: str) -> None:
    """Delta writes them as they are, into the least and greatest value of each column for example."""
    added = json.dumps({"add": {"path": "part-1", "dataChange": True, "stats": f"a{character}b"}}, ensure_ascii=False)
    commit = parse_commit(3, "\n".join([json.dumps({"commitInfo": {"operation": "WRITE"}}), added]))
    assert [action["path"] for action in commit.added.values()] == ["part-1"]


@pytest.mark.parametrize("target", [{"version": 1}, {"timestamp": "2024-01-01 00:00:00"}])
def test_rows_that_a_restore_by_hand_brings_back_are_told(target: dict[str, Any]) -> None:
    """It only adds a file, which a rollback had taken away before the checkpoint."""
    described = {"commitInfo": {"operation": "RESTORE", "operationParameters": target}}
    back = parse_commit(3, f"{json.dumps(described)}\n{the_json('add', 'part-1', changes=True)}")
    assert back.is_reset
    for planned in (lambda: plan_rollback([back], APP, 9), lambda: refuse_replaced([back], APP)):
        with pytest.raises(SinkMismatch, match=r"version 3 \(RESTORE\)"):
            planned()
    table = Table()
    for writer in (OURS, OURS):
        table.write(writer)
    table.roll_back(OURS, 0)
    assert not was_reset(table.log[1:], APP)
    table.restore(1)
    assert was_reset(table.log[1:], APP)
    assert not was_reset(table.log[-1:], APP)


def test_replaced_rows_are_found_in_what_is_left_of_the_log() -> None:
    """Where the job has nothing to take back. A RESTORE by hand undoes what replaced them."""
    left = [*written(OTHERS, OURS, THEIRS)[1:], replaced(3)]
    with pytest.raises(SinkMismatch, match=r"version 3 \(WRITE\)"):
        refuse_replaced(left, APP)
    refuse_replaced([*left, replaced(4, restored=0)], APP)
    with pytest.raises(SinkMismatch, match=r"version 4 \(RESTORE\)"):
        refuse_replaced([replaced(4, restored=0)], APP)
    table = Table()
    for writer in (OURS, THEIRS):
        table.write(writer)
    table.roll_back(OURS, 0)
    table.roll_back(THEIRS, 0)
    refuse_replaced(table.log, APP)


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_a_rollback_of_another_job_is_none_by_hand(checkpoint: int) -> None:
    """Their checkpoint is of before ours, or of after."""
    table = Table()
    for writer in (OURS, OURS, THEIRS, OURS, THEIRS):
        table.write(writer)
    table.roll_back(THEIRS, 2 if checkpoint == 0 else 0)
    removed = plan_rollback(table.log[checkpoint + 1 :], APP, 9).removed
    written = ["part-1", "part-3"][checkpoint:]
    assert [json.loads(line)["remove"]["path"] for line in removed] == written


def test_two_jobs_roll_back_over_one_compaction() -> None:
    """As after the end of a cluster: what the first rollback puts back is there for the second."""
    table = Table()
    for writer in (OURS, THEIRS, OURS, THEIRS):
        table.write(writer)
    table.optimize(0)
    for who in (THEIRS, OURS):
        table.roll_back(who, 1)
    assert Counter(row[0] for row in table.rows(table.now)) == {OURS: 2, THEIRS: 2}


def test_files_are_told_apart_by_their_deletion_vectors() -> None:
    """As a DELETE leaves them: the same path, with other rows hidden."""
    vector: dict[str, Any] = {"storageType": "u", "pathOrInlineDv": "ab", "offset": 1}
    removed = {"path": "part-0", "dataChange": True}
    added = {**removed, "deletionVector": vector}
    commit = parse_commit(4, f"{json.dumps({'remove': removed})}\n{json.dumps({'add': added})}")
    assert commit.removed.keys() == {("part-0", "")}
    assert commit.added.keys() == {("part-0", "uab@1")}
    assert commit.removes_rows


def constraint(operation: str, name: str) -> str:
    return json.dumps({"commitInfo": {"operation": f"{operation} CONSTRAINT", "operationParameters": {"name": name}}})


def test_rows_come_back_unless_the_table_got_a_constraint_while_they_were_away() -> None:
    table = Table()
    table.commit("WRITE", added=[((OURS, 1),)], who=OURS)
    table._end([constraint("ADD", "while they were there")])
    table.commit("RESTORE", ["part-0"], who=OURS)
    assert plan_rollback(table.log[1:], APP, 0).paths == ("part-0",)
    table._end([constraint("ADD", "dropped")])
    table._end([constraint("DROP", "dropped")])
    assert plan_rollback(table.log[1:], APP, 0).paths == ("part-0",)
    table._end([constraint("ADD", "while they were away")])
    assert plan_rollback(table.log, APP, 0).paths == ()
    with pytest.raises(SinkMismatch, match=r"got a constraint, in version 5 \(ADD CONSTRAINT\)"):
        plan_rollback(table.log[1:], APP, 0)


def test_rows_that_delta_has_looked_at_since_come_back_whatever_was_before() -> None:
    table = Table()
    table.commit("WRITE", added=[((OURS, 1),)], who=OURS)
    table.commit("RESTORE", ["part-0"], who=OURS)
    table.now["part-0"] = table.files["part-0"]
    table._end([the_json("add", "part-0", changes=True), marked(OURS, 2)])
    table._end([constraint("ADD", "Looked at")])
    table.commit("RESTORE", ["part-0"], who=OURS)
    assert plan_rollback(table.log[1:], APP, 0).paths == ("part-0",)
    table._end([constraint("ADD", "Away")])
    with pytest.raises(SinkMismatch, match="got a constraint"):
        plan_rollback(table.log[1:], APP, 0)
    table._end([constraint("DROP", "away")])
    assert plan_rollback(table.log[1:], APP, 0).paths == ("part-0",)


def test_rows_that_were_compacted_when_the_table_got_a_constraint_come_back() -> None:
    """Delta has looked at them in the other file."""
    table = Table()
    table.commit("WRITE", added=[((OTHERS, 1),)])
    table.commit("WRITE", added=[((OURS, 1),)], who=OURS)
    table.commit("OPTIMIZE", ["part-0", "part-1"], [((OTHERS, 1), (OURS, 1))], changes=False)
    table._end([constraint("ADD", "any")])
    assert plan_rollback(table.log[1:], APP, 0).paths == ("part-0",)


def test_the_marks_of_a_claim_beside_the_jobs_make_no_other_job_of_it() -> None:
    mark = json.dumps({"txn": {"appId": APP, "version": 7}})
    beside = [json.dumps({"txn": {"appId": name, "version": 7}}) for name in (claim_of(APP), held_of(APP))]
    claim = parse_commit(4, "\n".join([mark, *beside]))
    assert len(claim.marks) == 3
    assert not any(name.startswith("dagster_ckpt:") for name in (claim_of(APP), held_of(APP)))


def test_a_commit_tells_its_transaction_unless_commits_are_not_described() -> None:
    told = json.dumps({"commitInfo": {"operation": "WRITE", "txnId": "0f5a"}})
    assert parse_commit(3, told).transaction == "0f5a"
    assert not parse_commit(3, json.dumps({"commitInfo": {"operation": "WRITE"}})).transaction


def test_a_file_that_cannot_be_described_is_refused() -> None:
    text = json.dumps({"remove": {"path": "part-0", "dataChange": True}})
    mark = json.dumps({"txn": {"appId": APP, "version": 3}})
    with pytest.raises(SinkMismatch, match="part-0 must come back"):
        plan_rollback([parse_commit(1, f"{mark}\n{text}")], APP, 9)


@pytest.mark.parametrize("text", ["{", "[]", '{"add": {"path": "part-0"}}', '{"txn": {"appId": "a"}}', '{"add": 3}'])
def test_a_log_that_delta_would_not_write_is_refused(text: str) -> None:
    with pytest.raises(SinkMismatch, match="Version 3 of the Delta table"):
        parse_commit(3, text)


@given(
    st.tuples(st.integers(1, 2**30), st.integers(-1, 2**31)), st.tuples(st.integers(1, 2**30), st.integers(-1, 2**31))
)
def test_marks_are_in_the_order_of_epochs_and_batches(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (mark_of(*one) < mark_of(*other)) == (one < other)
    assert (marked_epoch(mark_of(*one)), marked_batch(mark_of(*one))) == one
    assert mark_of(*one) < 2**63


def test_files_that_are_told_of_once_more_stay() -> None:
    table = Table()
    for writer in (OTHERS, OURS, OURS):
        table.write(writer)
    table.describe()
    plan = plan_rollback(table.log[2:], APP, 9)
    assert [json.loads(line)["remove"]["path"] for line in plan.removed] == ["part-2"]
    assert plan.added == ()


def rewritten(table: Table) -> None:
    """As when column mapping goes: the same rows in other files, which have the columns under other names."""
    lines = [json.dumps({"commitInfo": {"operation": "REMOVE COLUMN MAPPING"}}), json.dumps({"metaData": {"id": "t"}})]
    lines += [the_json("remove", path, changes=False) for path in table.now]
    table.now = {f"new-{path}": rows for path, rows in table.now.items()}
    table.files |= table.now
    table._end([*lines, *(the_json("add", path, changes=False) for path in table.now)])


@pytest.mark.parametrize("before", ["written", "taken back"])
def test_no_file_of_a_schema_before_comes_back(before: str) -> None:
    """Whether the rows were rewritten, or were away meanwhile."""
    table = Table()
    for writer in (OURS, OURS):
        table.write(writer)
    if before == "taken back":
        table.roll_back(OURS, 0)
    rewritten(table)
    with pytest.raises(SinkMismatch, match=r"\(REMOVE COLUMN MAPPING\), which has rewritten the others") as refused:
        plan_rollback(table.log[2 if before == "taken back" else 1 :], APP, 9)
    assert f"TO VERSION AS OF {len(table.log) - 2}" in refused.value.hint


def test_a_compaction_of_others_files_stays() -> None:
    """Taking it back would bring files back that VACUUM may have deleted."""
    table = Table()
    for writer in (OURS, OTHERS, OTHERS):
        table.write(writer)
    table.commit("OPTIMIZE", ["part-1", "part-2"], [(*table.files["part-1"], *table.files["part-2"])], changes=False)
    table.write(OURS)
    plan = plan_rollback(table.log[1:], APP, 9)
    assert [json.loads(line)["remove"]["path"] for line in plan.removed] == ["part-4"]
    assert plan.added == ()
