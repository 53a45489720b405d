"""``dagster-ckpt restore``: the command, and what it asks of Dagster's webserver."""

from __future__ import annotations

from dagster_ckpt.cli.rollback.restore import restore

__all__ = ["restore"]
