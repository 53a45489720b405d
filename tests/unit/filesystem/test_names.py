"""The one function that names read from a storage pass."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.filesystem import inside

COMPONENTS = ["", ".", "..", "...", "a", ".a", "..a", "a b", "\0", "\ud800", "ä", "x" * 255, "x" * 256, "ä" * 128, "\n"]


@given(st.lists(st.sampled_from(COMPONENTS) | st.text(max_size=4), max_size=6).map("/".join))
def test_what_passes_is_a_file_below_any_directory(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    wrong = {"", ".", ".."} & set(name.split("/"))
    try:
        assert inside(name) == name
    except ValueError:
        long = any(len(part.encode(errors="replace")) > 255 for part in name.split("/"))
        assert wrong or long or "\0" in name or any("\ud800" <= character <= "\udfff" for character in name)
        return
    assert not wrong
    root = tmp_path_factory.mktemp("names")
    assert os.path.normpath(root / name) == f"{root}/{name}"
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    shutil.rmtree(root)


@pytest.mark.parametrize("name", [None, 3, b"a", ["a"], True, Path("a")])
def test_what_is_no_text_is_no_name(name: object) -> None:
    with pytest.raises(ValueError, match="a name must be text"):
        inside(name)


def test_a_name_leaves_room_for_the_directory_that_it_is_joined_to() -> None:
    for part in ("x", "ä"):
        fits = "/".join([part * (128 // len(part.encode()))] * 23)
        assert inside(fits) == fits
        with pytest.raises(ValueError, match="too long"):
            inside(f"{fits}/{fits}")
