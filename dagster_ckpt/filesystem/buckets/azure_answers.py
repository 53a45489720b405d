"""What Azure's libraries answer, as this package asks for it."""

from __future__ import annotations

from typing import Any

__all__ = ["error_code", "is_marker", "status_of"]


def is_marker(blob: Any) -> bool:
    """Whether a blob only stands for a directory."""
    return (blob.metadata or {}).get("hdi_isfolder") == "true"


def status_of(error: BaseException) -> int:
    """The HTTP status that an error came with, 0 for none."""
    return int(getattr(error, "status_code", None) or 0)


def error_code(error: BaseException) -> str:
    """Azure's own name for an error."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code))
