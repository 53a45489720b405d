"""Sources that start elsewhere than the restored checkpoint has them."""

from dagster_ckpt.spark.moved_sources.move import move_sources
from dagster_ckpt.spark.moved_sources.places import MOVE_CHECK, Places, places_of
from dagster_ckpt.spark.moved_sources.repeated import last_move, still_to_move, without_repeat
from dagster_ckpt.spark.moved_sources.stored import stored_move_findings

__all__ = [
    "MOVE_CHECK",
    "Places",
    "last_move",
    "move_sources",
    "places_of",
    "still_to_move",
    "stored_move_findings",
    "without_repeat",
]
