"""The seal of what is stored as JSON: its last member is a SHA-256 over every byte before it.

A truncated, flipped or spliced document is found before anything in it is believed.
"""

from __future__ import annotations

import hashlib

__all__ = ["is_sealed", "seal"]

_DIGEST = b',\n "digest": "sha256:'
_END = b'"\n}\n'


def seal(body: bytes) -> bytes:
    """The document whose text is ``body``, a JSON object of at least one member without its closing brace."""
    return body + _DIGEST + _checksum(body) + _END


def is_sealed(data: bytes) -> bool:
    """Whether ``data`` is a document as :func:`seal` made it."""
    body, mark, tail = data.rpartition(_DIGEST)
    return bool(mark) and tail == _checksum(body) + _END


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode("ascii")
