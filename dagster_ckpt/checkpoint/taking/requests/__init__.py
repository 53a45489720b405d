"""Requests for savepoints and checkpoints: the side of the asker, and that of the driver."""

from __future__ import annotations

from dagster_ckpt.checkpoint.taking.requests.answers import request_next_step
from dagster_ckpt.checkpoint.taking.requests.ask_savepoint import ask_checkpoint, take_savepoint
from dagster_ckpt.checkpoint.taking.requests.checkpoints_at_once import CheckpointsAtOnce
from dagster_ckpt.checkpoint.taking.requests.savepoint_server import SavepointServer

__all__ = ["CheckpointsAtOnce", "SavepointServer", "ask_checkpoint", "request_next_step", "take_savepoint"]
