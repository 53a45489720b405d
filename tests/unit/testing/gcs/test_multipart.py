"""What an upload in one request carries arrives byte for byte, whatever ends the lines around it."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dagster_ckpt.testing.gcs.messages import two_parts
from tests.unit.testing.gcs.conversation import multipart

_PIECES = [b"\r", b"\n", b"-", b"--", b"\x00", b"\xff", b"==0", b"a: b"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@given(pieces=st.lists(st.sampled_from(_PIECES), max_size=8))
@example(pieces=[b"\xff", b"\r"])
@example(pieces=[b"\r", b"\n"])
@example(pieces=[b"--", b"==0", b"-"])
def test_the_data_of_an_upload(end: bytes, pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assume(b"\n--==0==" not in b"\n" + data)  # a client chooses a mark that the data lacks
    about, arrived = two_parts('multipart/related; boundary="==0=="', multipart({"name": "a/f"}, data, end))
    assert arrived == data
    assert about == {"name": "a/f", "contentType": "application/octet-stream"}
