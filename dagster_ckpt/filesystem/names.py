"""Names that were read from a storage and become paths: every one goes through :func:`inside` first.

A manifest, a record and a plan name files relative to a directory. Whoever can write to the storage can write any text
there; a name that left its directory would let such a text overwrite or delete a file of the reader's.
"""

from __future__ import annotations

import re

__all__ = ["check_possible", "inside"]

#: Bytes of one component of a path: the limit of Linux.
_LONGEST_COMPONENT = 255
#: Bytes of a name: of the 4096 that a path has on Linux, the directory that it is joined to has the rest.
_LONGEST = 3072
#: Nearly all names, ASCII without hidden components; a manifest has 10^6 of them.
_ORDINARY = re.compile(r"(?:[!-\-0-~][ -.0-~]{0,254}/)*[!-\-0-~][ -.0-~]{0,254}").fullmatch


def inside(name: object) -> str:
    """``name``, if joined to any directory it names a file below that directory on every storage.

    Such a name has one or more components between single slashes, none of them ``.`` or ``..``, and can be a path of
    the operating system: no NUL, valid UTF-8, not too long.

    Raises:
        ValueError: it may lead elsewhere, or cannot be a path.
    """
    if not isinstance(name, str):
        raise ValueError(f"a name must be text, not {type(name).__name__}")
    if len(name) <= _LONGEST and _ORDINARY(name):
        return name
    components = check_possible(name)
    if any(component in {b"", b".", b".."} for component in components):
        raise ValueError(f"{name!r} does not name a file inside its directory")
    return name


def check_possible(path: str) -> list[bytes]:
    """The components of ``path``, if the operating system can have a file there.

    Raises:
        ValueError: it cannot: there is a NUL in it, it is not valid UTF-8 or too long.
    """
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{path[:80]!r} is no name of a file: it is not valid UTF-8") from None
    components = encoded.split(b"/")
    if len(encoded) > _LONGEST or any(len(component) > _LONGEST_COMPONENT for component in components):
        raise ValueError(f"{path[:80]!r}... is too long for the name of a file")
    if b"\0" in encoded:
        raise ValueError(f"{path!r} has a NUL in it, as no name of a file has")
    return components
