"""Whether, when and how a job whose run is dead is resumed: for the sensor, and for runs without Dagster."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.resume.decision import (
        AskToCancel,
        Attend,
        Ended,
        EndJob,
        Facts,
        MarkDead,
        RecordFailures,
        Resume,
        RunFacts,
        Wait,
        decide,
        fell_back,
        nothing_to_do,
    )
    from dagster_ckpt.resume.facts_in_storage import poison_of, stored_facts
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "AskToCancel",
    "Attend",
    "EndJob",
    "Ended",
    "Facts",
    "MarkDead",
    "RecordFailures",
    "Resume",
    "RunFacts",
    "Wait",
    "decide",
    "fell_back",
    "nothing_to_do",
    "poison_of",
    "stored_facts",
]
