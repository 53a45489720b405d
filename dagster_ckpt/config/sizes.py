"""Sizes as people write them: bytes, or text such as ``"20 kb"`` or ``"5 MiB"``.

The grammar is Flink's (``MemorySize``), with the spellings ``KiB``, ``MiB``, ... beside its own: a whole number and a
unit, or bytes without one. Every unit is a power of 1024, ``mb`` and ``m`` too.
"""

from __future__ import annotations

import re

__all__ = ["parse_size"]

_UNITS = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib", "kibibytes"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib", "mebibytes"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib", "gibibytes"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib", "tebibytes"), 1 << 40),
}
_SIZE = re.compile(r"\s*([0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Read a size; bytes.

    Raises:
        ValueError: it is not a size.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    size = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if size is None or size[2].lower() not in _UNITS:
        raise ValueError(
            f"{value!r} is not a size: write bytes, or a whole number and a unit, such as '20 kb' or '5 MiB'"
        )
    return int(size[1]) * _UNITS[size[2].lower()]
