"""Whether a process that a test has started, or found, is there."""

from __future__ import annotations

import psutil

__all__ = ["lives"]


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended, whoever reaps it, and when."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
