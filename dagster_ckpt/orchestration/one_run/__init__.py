"""One run of a job at a time: a second one gives way; a run with several steps says what waits, and for what."""

from dagster_ckpt.orchestration.one_run.behind_the_stream import BEHIND, wait_for_stream
from dagster_ckpt.orchestration.one_run.giving_way import give_way
from dagster_ckpt.orchestration.one_run.several_streams import tell_of_others

__all__ = ["BEHIND", "give_way", "tell_of_others", "wait_for_stream"]
