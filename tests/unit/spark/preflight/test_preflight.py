"""The verdict of several findings, and what becomes of it: pure decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.config.checkpoint_config import CheckpointingMode
from dagster_ckpt.errors import (
    CheckpointError,
    CorruptCheckpoint,
    QueryMismatch,
    RestoreRefused,
    RestoreWithLoss,
    SinkMismatch,
)
from dagster_ckpt.spark.verdict import Finding, Preflight, Verdict

_FINE = Finding.fine("files", "all there.")
_LOSES = Finding("source files", Verdict.WITH_LOSS, "a.json is gone.", "Put it back.")
_DOUBLES = Finding("batches after it", Verdict.WITH_LOSS, "batch 3 comes again.", only_doubles=True)
_SINK = Finding.of_error("sink position", SinkMismatch("It wrote elsewhere.", hint="Write there again."))
_QUERY = Finding.of_error("sources", QueryMismatch("It has 2.", hint="Run it as it was."))
_ALL = [_FINE, _LOSES, _DOUBLES, _SINK, _QUERY]

findings = st.lists(st.sampled_from(_ALL), unique=True).map(lambda found: Preflight("x/chk-1", tuple(found)))
modes = st.sampled_from(CheckpointingMode)


def test_the_order_of_the_verdicts_is_their_exit_status() -> None:
    assert [
        verdict.severity for verdict in ("RESTORABLE", "WITH_LOSS", "NOT_RESTORABLE") for verdict in [Verdict(verdict)]
    ] == [0, 1, 2]


@given(findings)
def test_the_verdict_is_the_worst_finding(preflight: Preflight) -> None:
    assert preflight.verdict.severity == max([0, *(item.verdict.severity for item in preflight.findings)])
    assert {item.check for item in preflight.bad} == {item.check for item in preflight.findings} - {"files"}
    assert preflight.lines()[-1] == f"x/chk-1: {preflight.verdict}"
    lines = iter(preflight.lines())
    for item in preflight.findings:
        line = next(lines)
        assert item.check in line
        assert item.verdict in line
        assert item.reason in line
        if item in preflight.bad and item.hint:
            assert next(lines).endswith(f"-> {item.hint}")
    told = preflight.to_json()
    assert told["verdict"] == preflight.verdict
    assert isinstance(told["findings"], list)
    assert len(told["findings"]) == len(preflight.findings)


@given(findings, modes, st.sampled_from([None, (), (_LOSES.reason,), (_DOUBLES.reason,)]))
def test_what_is_refused(preflight: Preflight, mode: CheckpointingMode, accepted: tuple[str, ...] | None) -> None:
    error = preflight.refusal(mode, accepted)
    if preflight.verdict is Verdict.NOT_RESTORABLE:  # and nobody can accept that
        first = next(item for item in preflight.findings if item.verdict is Verdict.NOT_RESTORABLE)
        assert type(error) is type(first.error)
        assert error is not None
        assert error.hint == first.hint
        assert all(item.reason in error.message for item in preflight.bad)
        return
    exactly = mode is CheckpointingMode.EXACTLY_ONCE
    refused = [
        item
        for item in preflight.findings
        if accepted is not None and item.reason not in accepted and (item is _LOSES or (item is _DOUBLES and exactly))
    ]
    assert (error is None) == (not refused)
    if error is not None:
        assert type(error) is RestoreWithLoss
        assert "allow_loss: true" in error.hint
        assert [item for item in preflight.losses if item.reason in error.message] == refused
        assert ("lose rows" in error.message) == (_LOSES in refused)


@pytest.mark.parametrize("error", [CorruptCheckpoint, RestoreRefused])
def test_one_bad_finding_raises_the_error_that_it_has(error: type[CheckpointError]) -> None:
    raised = error("It is broken.", hint="Mend it.")
    assert Preflight("x", (_FINE, Finding.of_error("files", raised))).refusal(CheckpointingMode.EXACTLY_ONCE) is raised
