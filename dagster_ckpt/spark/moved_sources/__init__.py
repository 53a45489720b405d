"""Sources that start elsewhere than the restored checkpoint has them."""

from dagster_ckpt.spark.moved_sources.move import move_sources
from dagster_ckpt.spark.moved_sources.places import MOVE_CHECK, Partition, Places, places_of
from dagster_ckpt.spark.moved_sources.repeated import choose_once, last_move
from dagster_ckpt.spark.moved_sources.stored import moved_partitions, stored_move_findings

__all__ = [
    "MOVE_CHECK",
    "Partition",
    "Places",
    "choose_once",
    "last_move",
    "move_sources",
    "moved_partitions",
    "places_of",
    "stored_move_findings",
]
