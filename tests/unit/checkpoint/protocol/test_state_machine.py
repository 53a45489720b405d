"""Any order of starts, rollbacks, checkpoints, subsumptions, pins, faults, crashes and zombies, against the ledger."""

from __future__ import annotations

from tests.unit.checkpoint.protocol.state_machine import explore


def test_any_order_of_events_keeps_every_promise() -> None:
    explore(max_examples=60)
