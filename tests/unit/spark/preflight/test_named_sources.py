"""Of a source that comes back: whether Spark goes on where it was, or begins there anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.checkpoint.control.plan_archive import PlannedBatch
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.manifest import FileEntry
from dagster_ckpt.spark.preflight.named_sources import named_sources_finding, read_before
from dagster_ckpt.spark.query import QuerySource
from dagster_ckpt.spark.verdict import Finding, Verdict
from tests.helpers.checkpoint.manifests import MANIFEST

_READ = '{"logOffset":1}'
_QUERY = [QuerySource(name, "json", {}, is_named=True) for name in ("a", "b")]


def _entry(sources: dict[str, str]) -> str:
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
    return "\n".join(["v2", head, *(f"{name}:{offset}" for name, offset in sources.items())])


def _finding(
    location: Path | None,
    before: dict[str, str],
    *,
    has_log: bool = True,
    again: list[PlannedBatch] | None = None,
    read: list[str] | None = None,
    query: list[QuerySource] = _QUERY,
) -> Finding:
    """Of a checkpoint of batch 3, whose entry names a only."""
    log = [FileEntry("checkpoint/sources/b/0", 9, None, inline=b"")] if has_log else []
    facts = Facts.model_validate({"sources": [{"id": "a", "offset": {"logOffset": 3}}], "read_sources": read})
    restored = replace(MANIFEST, batch=3, facts=facts, files=tuple(log))
    if location is not None:
        for batch, sources in ((1, {"a": _READ, "b": _READ}), (2, before), (3, {"a": _READ})):
            (location / "offsets").mkdir(exist_ok=True)
            (location / "offsets" / str(batch)).write_text(_entry(sources))
    return named_sources_finding("sources", restored, query, again or [], location)


def test_it_goes_on_where_the_entry_before_the_last_one_says(tmp_path: Path) -> None:
    assert _finding(tmp_path, {"a": _READ, "b": _READ}).verdict is Verdict.RESTORABLE


@pytest.mark.parametrize("before", [{"a": _READ}, {"a": _READ, "b": "-"}])
def test_one_that_two_entries_do_not_know_is_read_anew(tmp_path: Path, before: dict[str, str]) -> None:
    finding = _finding(tmp_path, before)
    assert (finding.verdict, finding.only_doubles) == (Verdict.WITH_LOSS, True)
    assert "it may have read b before, and after batch 3 Spark does not know how far" in finding.reason


def test_one_that_has_read_nothing_is_as_good_as_new(tmp_path: Path) -> None:
    assert _finding(tmp_path, {"a": _READ}, has_log=False).verdict is Verdict.RESTORABLE


@pytest.mark.parametrize(
    ("kind", "read", "verdict"),
    [
        ("delta", ["a", "b"], Verdict.WITH_LOSS),
        ("delta", ["a"], Verdict.RESTORABLE),
        ("delta", None, Verdict.WITH_LOSS),  # as of a release that did not record it: it may have been read
        ("", None, Verdict.WITH_LOSS),
        ("json", None, Verdict.RESTORABLE),  # it would have a log
        ("json", ["a"], Verdict.RESTORABLE),
    ],
)
def test_one_without_a_log_has_been_read_if_the_checkpoint_says_so(
    kind: str, read: list[str] | None, verdict: Verdict, tmp_path: Path
) -> None:
    query = [_QUERY[0], replace(_QUERY[1], format=kind)]
    assert _finding(tmp_path, {"a": _READ}, has_log=False, read=read, query=query).verdict is verdict


def test_only_a_query_with_names_records_what_was_read() -> None:
    restored = replace(MANIFEST, facts=Facts(read_sources=["a", "b"]))
    assert read_before(None, _QUERY) == []
    assert read_before(restored, _QUERY) == ["a", "b"]
    assert read_before(MANIFEST, _QUERY) is None, "a checkpoint that does not tell makes nothing known"
    assert read_before(restored, [replace(source, is_named=False) for source in _QUERY]) is None


def test_a_batch_that_runs_again_begins_with_the_last_entry_only() -> None:
    """Spark ran that batch from the places in two entries; of a planned batch it takes those in the entry before."""
    plan = PlannedBatch(4, {"offsets/4": _entry({"a": _READ, "b": _READ})})
    finding = _finding(None, {}, again=[plan])
    assert finding.verdict is Verdict.WITH_LOSS
    assert "replay_to: none" in finding.hint
