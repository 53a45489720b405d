"""What a move of sources loses or reads twice, as far as a checkpoint tells without its query and its brokers."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.config import StartSources
from dagster_ckpt.errors import RestoreRefused
from dagster_ckpt.spark.moved_sources.places import MOVE_CHECK, find_sources, jump_finding
from dagster_ckpt.spark.verdict import Finding, Verdict

__all__ = ["stored_move_findings"]


def stored_move_findings(asked: StartSources | None, restored: CheckpointMetadata) -> list[Finding]:
    """The verdict on each topic that is to start elsewhere; a place that only the brokers know counts as a loss."""
    known = [source for source in restored.facts.sources if source.offsets]
    found: list[Finding] = []
    try:
        named = find_sources(asked or {}, known, restored)
    except RestoreRefused as error:
        return [Finding.of_error(MOVE_CHECK, error)]
    for source, topic, place in named:
        at = (source.offsets or {})[topic]
        if isinstance(place, Mapping) and place.keys() <= at.keys():
            jumps = {number: offset - at[number] for number, offset in place.items()}
            is_stateful = bool(restored.facts.operators)
            found.append(jump_finding(source, topic, place, jumps, is_stateful=is_stateful))
            continue
        reason = (
            f"topic {topic} of source {source.id} starts at {place}: only its brokers know how many records are "
            "skipped or read twice, and the start asks them."
        )
        hint = "A launch of the job without allow_loss counts them, and changes nothing if there are any."
        found.append(Finding(MOVE_CHECK, Verdict.WITH_LOSS, reason, hint))
    return found
