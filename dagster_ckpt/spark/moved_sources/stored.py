"""What a move of sources loses or reads twice, as far as a checkpoint tells without its query and its brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.config import StartSources
from dagster_ckpt.errors import RestoreRefused
from dagster_ckpt.spark.moved_sources.places import MOVE_CHECK, check_start, find_sources, jump_finding
from dagster_ckpt.spark.sinks import Sink
from dagster_ckpt.spark.verdict import Finding, Verdict

__all__ = ["stored_move_findings"]

_UNASKED = "Only the start asks the brokers whether they have these offsets."


def stored_move_findings(
    asked: StartSources, restored: CheckpointMetadata, sink: Sink | None, later: Sequence[int]
) -> list[Finding]:
    """The verdict on each topic that is to start elsewhere; a place that only the brokers know counts as a loss.

    Args:
        asked: the places.
        restored: the checkpoint.
        sink: the checkpoint's sink, ``None`` if it is not known or checkpoints do not cover it.
        later: the batches that are known to have been planned after the checkpoint.
    """
    known = [source for source in restored.facts.sources if source.offsets]
    found: list[Finding] = []
    try:
        check_start(sink, later)
        named = find_sources(asked, known, restored)
    except RestoreRefused as error:
        return [Finding.of_error(MOVE_CHECK, error)]
    for source, topic, place in named:
        at = (source.offsets or {})[topic]
        if isinstance(place, Mapping) and place.keys() <= at.keys():
            jumps = {number: offset - at[number] for number, offset in place.items()}
            item = jump_finding(source, topic, place, jumps, restored.facts)
            found.append(replace(item, reason=f"{item.reason} {_UNASKED}"))
            continue
        reason = (
            f"topic {topic} of source {source.id} starts at {place}: only its brokers know how many records are "
            "skipped or read twice, and the start asks them."
        )
        hint = "A launch of the job without allow_loss counts them, and changes nothing if there are any."
        found.append(Finding(MOVE_CHECK, Verdict.WITH_LOSS, reason, hint))
    return found
