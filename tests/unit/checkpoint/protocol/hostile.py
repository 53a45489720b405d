"""Values and bytes that an attacker, a bit that fell over or another program puts in the place of what was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

#: What an attacker, a bit that fell over or another program puts in the place of a value.
texts = st.sampled_from(
    ["", ".", "..", "../x", "../../canary/secret", "/etc/passwd", "a/b", "a//b", "\0", "\ud800", "x" * 300, "a/" * 3000]
) | st.text(max_size=8)
numbers = st.sampled_from(
    [0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, 1e308, float("nan"), float("inf"), float("-inf")]
) | st.integers(-5, 99)


def nested(depth: int) -> Any:
    made: Any = []
    for _ in range(depth):
        made = [made]
    return made


anything = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.sampled_from([90, 150, 600]).map(nested),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values lie in a document, it itself included."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*at, key))


def changed(draw: st.DrawFn, document: Any) -> Any:
    """The document with some values replaced, moved, doubled or taken out."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from(list(places(document))))
        if not at:
            if draw(st.integers(0, 9)) == 0:
                document = draw(anything)
            continue
        inner = document
        for key in at[:-1]:
            inner = inner[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "add", "copy"])):
            case "replace":
                inner[at[-1]] = draw(anything)
            case "remove":
                del inner[at[-1]]
            case "add" if isinstance(inner, dict):
                inner[draw(texts)] = draw(anything)
            case _ if isinstance(inner, list):
                inner.append(inner[at[-1]])
            case _:
                inner[draw(texts)] = inner[at[-1]]
    return document


def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some of them flipped, cut off, doubled or replaced."""
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    match draw(st.sampled_from(["flip", "cut", "insert"])):
        case "flip" if data:
            return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case _:
            return data[:at] + draw(st.binary(min_size=1, max_size=4) | st.just(b"[" * 3000)) + data[at:]
