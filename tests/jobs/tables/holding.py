"""A function that keeps a write, or a commit, under way as long as a test wants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["waiting"]


def waiting(root: Path) -> Callable[[Any], Any]:
    """Returns its value, but not while the file ``hold`` is in ``root``; it leaves the file ``held`` then."""
    hold, held = str(root / "hold"), str(root / "held")

    # Without annotations: PySpark would warn that they name no type of pandas.
    def wait(value):  # type: ignore[no-untyped-def]
        import pathlib  # noqa: PLC0415 - on a worker
        import time  # noqa: PLC0415

        while pathlib.Path(hold).exists():
            pathlib.Path(held).touch()
            time.sleep(0.05)
        return value

    return wait
