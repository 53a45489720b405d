"""A loss that a user has accepted is not asked for again at the next start, and another one is.

The job has gone on meanwhile: what a finding counts has changed, and what is lost has not.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dagster_ckpt
from dagster_ckpt.checkpoint.control.plan_archive import PlannedBatch
from dagster_ckpt.checkpoint.format.facts import Topic
from dagster_ckpt.spark.kafka import TopicState
from dagster_ckpt.spark.preflight import table_sources
from dagster_ckpt.spark.preflight.checkpoint_checks import replay_finding
from dagster_ckpt.spark.preflight.kafka_topics import _Compared
from dagster_ckpt.spark.preflight.source_files import source_finding
from dagster_ckpt.spark.preflight.start_checks import accepted_in
from dagster_ckpt.spark.query import QuerySource
from dagster_ckpt.spark.sinks.user_sinks import ForeachBatchSink
from dagster_ckpt.spark.verdict import Finding, Verdict
from tests.helpers.checkpoint.manifests import MANIFEST

_Make = Callable[[Path, pytest.MonkeyPatch], Finding]

#: Where a loss is found, and why its whole text is compared.
_WHOLE = {
    "preflight/another_sink.py elsewhere_finding": "a start keeps the text of the start before",
    "preflight/checkpoint_checks.py sink_finding": "which files of the sink are gone; it counts what is lost",
    "preflight/query_checks.py removed_finding": "at the first start of a fork only",
    "preflight/query_checks.py state_keys_finding": "columns of the query and of the checkpoint",
    "preflight/named_sources.py named_sources_finding": "names of the query, and places in the checkpoint",
    "preflight/source_directories.py directories_finding": "a path of the query, and a file in the checkpoint",
    "preflight/source_files.py lost_files_finding": "the start makes its checkpoint the newest, and none is later",
    "preflight/kafka_topics.py finding": "a topic that is gone, and numbers in the checkpoint",
    "preflight/table_sources.py _lossy": "a table that ends early may be cut again, and end where it ended before",
    "moved_sources/places.py jump_finding": "each move is asked for anew",
    "moved_sources/stored.py _finding": "told by the command line, not by a start",
    "moved_sources/stored.py _finding replace": "told by the command line, not by a start",
    "plain/export.py _sink_findings": "told by an export, not by a start",
}
#: Where a loss is found whose text changes from start to start; the tests below are of these.
_PARTS = {
    "preflight/checkpoint_checks.py replay_finding",
    "preflight/source_files.py source_finding",
    "preflight/kafka_topics.py _lossy",
}


def _losses() -> Iterator[str]:
    """Each function of the package that makes a finding of a loss."""
    root = Path(dagster_ckpt.__file__).parent / "spark"
    for path in root.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and ast.unparse(call.func) in {"Finding", "replace"}:
                        given = {ast.unparse(each) for each in (*call.args, *(key.value for key in call.keywords))}
                        if "Verdict.WITH_LOSS" in given:
                            kind = " replace" * (ast.unparse(call.func) == "replace")
                            yield f"{path.relative_to(root)} {function.name}{kind}"


def test_of_every_loss_it_is_known_what_a_consent_is_compared_by() -> None:
    assert set(_losses()) == _WHOLE.keys() | _PARTS


def _sink(newest: int | None) -> ForeachBatchSink:
    return ForeachBatchSink("delays", lambda rows, batch: None, newest_batch=lambda: newest)


def _replay(batch: int, again: Sequence[int], known: Sequence[int], newest: int = 60, *, goes_on: bool = True) -> _Make:
    restored = replace(MANIFEST, batch=batch)
    return lambda *_: replay_finding(restored, _sink(newest), None, again, known, goes_on=goes_on)


def _files(*names: tuple[int, str]) -> _Make:
    """Of batches that each read one file, of which those with ``gone`` in their names are."""

    def make(root: Path, _: pytest.MonkeyPatch) -> Finding:
        plans = []
        for batch, name in names:
            if "gone" not in name:
                (root / name).touch()
            line = json.dumps({"path": (root / name).as_uri(), "timestamp": 1, "batchId": batch})
            plans.append(PlannedBatch(batch, {f"offsets/{batch}": "v1", f"sources/0/{batch}": f"v1\n{line}"}))
        return source_finding(plans, None)

    return make


def _topic(now: TopicState, at: int = 50, upto: int = 50, name: str = "rows") -> _Make:
    topic = _Compared(f"topic {name} of source 0", {"0": at}, {"0": upto}, Topic(id="x"), now)
    return lambda *_: topic.finding(strict=False, pattern=False)


def _left_out(latest: int, at: int = 50) -> _Make:
    topic = _Compared("topic rows of source 0", {"0": at}, {"0": at}, None, _state(latest))
    return lambda *_: topic.left_out(strict=False)


def _state(latest: int, earliest: int = 0, topic: str = "x") -> TopicState:
    return TopicState(topic, {"0": earliest}, {"0": latest}, {})


def _table(newest: int, at: int = 9) -> _Make:
    def make(_: Path, monkeypatch: pytest.MonkeyPatch) -> Finding:
        monkeypatch.setattr(table_sources, "DeltaTable", lambda *_: SimpleNamespace(version=newest, identifier="t"))
        offset = {"reservoirId": "t", "reservoirVersion": at, "index": -1, "isStartingVersion": False}
        source = QuerySource("0", "delta", {}, table="/in")
        session: Any = None
        return table_sources._delta(session, source, offset, "table /in")

    return make


@pytest.mark.parametrize(
    ("accepted", "later"),
    [
        (_replay(10, [], [11, 60]), _replay(10, [11, 12], [11, 12])),
        (_replay(10, [], [11, 60]), _replay(13, [], [])),
        (_files((5, "gone")), _files((5, "gone"), (6, "b"), (7, "c"))),
        (_files((5, "gone5"), (6, "b"), (7, "gone7")), _files((6, "b"), (7, "gone7"), (8, "c"))),
        (_topic(_state(10, topic="y")), _topic(_state(40, topic="y"))),
        (_left_out(70), _left_out(75)),
    ],
)
def test_what_was_accepted_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: _Make, later: _Make
) -> None:
    before, now = accepted(tmp_path, monkeypatch), later(tmp_path, monkeypatch)
    assert before.verdict is now.verdict is Verdict.WITH_LOSS
    assert before.reason != now.reason, "nothing has changed: this shows nothing"
    assert _is_accepted(before, now)


@pytest.mark.parametrize(
    ("accepted", "later"),
    [
        (_replay(10, [], [11, 60]), _replay(13, [], [], newest=61)),
        (_replay(10, [], [11, 60]), _replay(13, [], [], newest=600)),
        (_replay(10, [], [11, 60]), _replay(13, [], [14, 15])),  # the job has written these since, and gives them up
        (_replay(10, [], [11, 60]), _replay(13, [], [], goes_on=False)),  # it may have written some, and nothing tells
        (_files((5, "gone")), _files((5, "gone"), (6, "gone6"))),
        (_files((5, "gone")), _files((6, "gone"))),
        (_topic(_state(10)), _topic(_state(10), at=80, upto=80)),
        (_topic(_state(10)), _topic(_state(0))),  # cut again
        (_topic(_state(10)), _topic(_state(10), name="others")),
        (_topic(_state(60, earliest=52)), _topic(_state(60, earliest=55))),
        (_topic(_state(10, topic="y")), _topic(_state(10, topic="z"))),
        (_left_out(70), _left_out(75, at=60)),
        (_table(3), _table(3, at=12)),
        (_table(3), _table(1)),
    ],
)
def test_another_loss_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: _Make, later: _Make) -> None:
    before, now = accepted(tmp_path, monkeypatch), later(tmp_path, monkeypatch)
    assert before.verdict is now.verdict is Verdict.WITH_LOSS
    assert not _is_accepted(before, now)


def test_consents_of_earlier_releases_count() -> None:
    note = (
        "batches after it: the sink delays cannot go back and has batches up to 60, and how batches 11 to 60 were "
        "bounded is not known or not to be heeded: with other rows under the same numbers, their rows would be lost or "
        "doubled. (accepted 2026-01-01T00:00:00Z by run r)"
    )
    finding = replay_finding(replace(MANIFEST, batch=13), _sink(60), None, [], [], goes_on=True)
    assert accepted_in([note], [finding]) == {finding.reason}


def _is_accepted(before: Finding, now: Finding) -> bool:
    note = f"{before.check}: {before.reason} (accepted 2026-01-01T00:00:00Z by run r)"
    return bool(accepted_in(["an other note", note], [now]))
