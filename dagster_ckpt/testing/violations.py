"""The violations that a harness found: their text, and the error that reports them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["described", "require_none"]


def described(error: Exception) -> str:
    """An error in one line with its type."""
    return f"{type(error).__name__}: {error}"


def require_none(violations: Sequence[str], runs: int) -> None:
    """Accept the result of ``runs`` runs.

    Raises:
        AssertionError: there are violations; the first ten are shown.
    """
    if violations:
        shown = "\n".join(violations[:10])
        raise AssertionError(f"{len(violations)} violations in {runs} runs:\n{shown}")
