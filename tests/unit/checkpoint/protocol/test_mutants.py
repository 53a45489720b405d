"""Every rule of the protocol is needed: with any of them switched off, a promise is broken and a harness tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import Phase

from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.testing import Flip, enumerate_crash_points
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.helpers.checkpoint.driver import Pins, Run
from tests.servers.gcs import BUCKET, answering_at_once
from tests.unit.checkpoint.protocol import mutants
from tests.unit.checkpoint.protocol.interleaved import interleavings
from tests.unit.checkpoint.protocol.late_ends import Job, starts_beside
from tests.unit.checkpoint.protocol.lives import FLIPPED, Life, after_the_next_start, within_the_life
from tests.unit.checkpoint.protocol.mutants import SwitchOff
from tests.unit.checkpoint.protocol.state_machine import explore
from tests.unit.filesystem.buckets.checkpoints.lives import BucketLife
from tests.unit.filesystem.buckets.stores import GoogleStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SEEDS = 600
Found = Callable[[Pins, type[Run]], object]


def crash_points(scenario: str) -> Found:
    """Something goes wrong at each operation of a life."""

    def find(pins: Pins, process: type[Run]) -> object:
        life = Life(pins, process)
        return enumerate_crash_points(
            life.fresh, getattr(life, scenario), life.examine, expected=(OSError, CheckpointError)
        ).violations

    return find


def late_requests(pins: Pins, process: type[Run]) -> object:
    """Each change of a life arrives after the next start."""
    return after_the_next_start(Life(pins, process), "first_life").violations


def late_within(pins: Pins, process: type[Run]) -> object:
    """Each change of a life arrives sixty requests later."""
    return within_the_life(Life(pins, process), "sharing", 60).violations


def late_ends(pins: Pins, process: type[Run]) -> object:
    """An end that discards everything arrives before each request of another start."""
    del process
    for started in starts_beside(pins, None, Job.arrive, lambda job: job.send(Run.cleanup)):
        started.examine()
    return ()


def flipped_bits(pins: Pins, process: type[Run]) -> object:
    """Each file of a checkpoint is read with another bit."""
    life = Life(pins, process)
    return enumerate_crash_points(
        life.fresh,
        life.restored,
        lambda storage, ledger: None,
        actions=lambda operation: [Flip(5)] if operation.name in FLIPPED and "/shared/" in operation.path else [],
        expected=(OSError, CheckpointError),
    ).violations


def interleaver(pins: Pins, process: type[Run]) -> object:
    """Three drivers, one of them a zombie every other time."""
    for first in range(0, SEEDS, 5):
        for zombie in (False, True):
            if found := interleavings(pins, range(first, first + 5), zombie=zombie, process=process).violations:
                return found
    return ()


def state_machine(pins: Pins, process: type[Run]) -> object:
    """Any order of events."""
    explore(max_examples=200, phases=(Phase.generate,))
    return ()


def wire(pins: Pins, process: type[Run]) -> object:
    """Each object of a life in a bucket is stored, and the reply is lost once."""
    with GcsServer() as server, pytest.MonkeyPatch.context() as patch:
        server.create_bucket(BUCKET)
        life = BucketLife(GoogleStore(server, patch), pins)
        for number, (request, _) in enumerate(life.requests(0)):
            if request.kind == "put" and (found := life.violation(0, number, "loses its reply once")):
                return found
    return ()


@dataclass(frozen=True)
class Rule:
    """A rule, how it is switched off, and which harness then finds that a promise is broken."""

    text: str
    off: SwitchOff
    found_by: Found
    process: type[Run] = Run

    def __str__(self) -> str:
        return self.text


RULES = [
    Rule("data first, _metadata last", mutants.metadata_first, crash_points("first_life")),
    pytest.param(
        Rule("_metadata is created exclusively", mutants.create_overwrites, interleaver),
        marks=pytest.mark.exhaustive,
    ),
    Rule("a create is settled by reading back", mutants.no_read_back, wire),
    pytest.param(
        Rule("unknown is not failed", mutants.unknown_is_failed, crash_points("first_life")),
        marks=pytest.mark.exhaustive,
    ),
    pytest.param(
        Rule("an unknown publish is settled before a deletion", mutants.no_settling, crash_points("sharing")),
        marks=pytest.mark.exhaustive,
    ),
    Rule("what is not published never will be", mutants.names_stay_free, late_within),
    Rule("the epoch is claimed before the choice", mutants.in_the_driver, interleaver, mutants.ClaimsLate),
    Rule("the epoch is checked before a publish", mutants.no_check_before_the_publish, interleaver),
    Rule("the epoch is checked before an acknowledgement", mutants.no_check_before_the_acknowledgement, interleaver),
    pytest.param(
        Rule("the epoch is checked before a deletion", mutants.no_check_before_a_deletion, interleaver),
        marks=pytest.mark.exhaustive,
    ),
    Rule("what a fenced writer publishes is void", mutants.nothing_is_void, interleaver),
    Rule("what was not complete at the choice is void", mutants.only_later_ids_are_void, late_requests),
    Rule("an epoch is closed before the next one chooses", mutants.no_closing, late_ends),
    pytest.param(
        Rule("_metadata is deleted before its files", mutants.files_before_metadata, crash_points("first_life")),
        marks=pytest.mark.exhaustive,
    ),
    Rule("a shared file goes when nothing needs it", mutants.no_reference_count, crash_points("first_life")),
    Rule("a shared file goes when nothing needs it (any order)", mutants.no_reference_count, state_machine),
    pytest.param(
        Rule("ids are recorded when they are issued", mutants.ids_are_not_recorded, crash_points("first_life")),
        marks=pytest.mark.exhaustive,
    ),
    Rule("a restore compares every byte", mutants.nothing_is_compared, flipped_bits),
    Rule("swept is what no checkpoint needs", mutants.everything_is_swept, crash_points("second_run")),
    # It takes hundreds of interleavings.
    pytest.param(
        Rule("swept is after the choice is on record", mutants.in_the_driver, interleaver, mutants.SweepsFirst),
        marks=pytest.mark.exhaustive,
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_that_is_switched_off_is_missed(rule: Rule, pins: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    answering_at_once(monkeypatch)
    rule.off(monkeypatch)
    try:
        found = rule.found_by(pins, rule.process)
    except Exception:  # even when nothing else goes wrong: that is found, too
        return
    assert found, f"nobody noticed that it is not so any more: {rule}"
