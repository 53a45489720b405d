"""One run of a job at a time: a second one gives way, and a run of several streams says what may wait."""

from dagster_ckpt.orchestration.one_run.giving_way import give_way
from dagster_ckpt.orchestration.one_run.several_streams import tell_of_others

__all__ = ["give_way", "tell_of_others"]
