"""Names that were read from a storage and become paths: every such name goes through :func:`inside` first.

A manifest, a record and a batch plan name files relative to a directory. Anybody with write access to the storage can
put any text there; a name that led out of its directory could overwrite or delete a file of the reader.
"""

from __future__ import annotations

import re

from dagster_ckpt.paths import LONGEST, check_possible

__all__ = ["inside"]

#: A fast test for nearly all names, ASCII without hidden components: a manifest may have 10^6 names.
_ORDINARY = re.compile(r"(?:[!-\-0-~][ -.0-~]{0,254}/)*[!-\-0-~][ -.0-~]{0,254}").fullmatch


def inside(name: object) -> str:
    """``name``, if it names a file below any directory that it is joined to, on every storage.

    The name must have one or more components between single slashes, none of them ``.`` or ``..``, and be a possible
    path of the operating system: no NUL, valid UTF-8, not too long.

    Raises:
        ValueError: the name may lead elsewhere, or cannot be a path.
    """
    if not isinstance(name, str):
        raise ValueError(f"a name must be text, not {type(name).__name__}")
    if len(name) <= LONGEST and _ORDINARY(name):
        return name
    components = check_possible(name)
    if any(component in {b"", b".", b".."} for component in components):
        raise ValueError(f"{name!r} does not name a file inside its directory")
    return name
