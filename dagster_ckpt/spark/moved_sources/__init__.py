"""Sources that start elsewhere than the restored checkpoint has them."""

from dagster_ckpt.spark.moved_sources.move import move_sources
from dagster_ckpt.spark.moved_sources.places import MOVE_CHECK, Places, places_of
from dagster_ckpt.spark.moved_sources.repeated import choose_once, last_move
from dagster_ckpt.spark.moved_sources.stored import moved_topics, stored_move_findings

__all__ = [
    "MOVE_CHECK",
    "Places",
    "choose_once",
    "last_move",
    "move_sources",
    "moved_topics",
    "places_of",
    "stored_move_findings",
]
