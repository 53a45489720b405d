from __future__ import annotations

import pytest

from dagster_ckpt.checkpoint.format import layout
from dagster_ckpt.errors import InvalidConfiguration


def test_flinks_layout() -> None:
    assert layout.checkpoint_directory("flights", "ab", 12) == "flights/ab/chk-12"
    assert layout.shared_directory("flights", "ab") == "flights/ab/shared"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("chk-1", 1),
        ("chk-10", 10),
        ("chk-0", None),
        ("chk-01", None),
        ("chk-", None),
        ("chk-1x", None),
        ("chk--1", None),
    ],
)
def test_the_number_of_a_checkpoint(name: str, number: int | None) -> None:
    assert layout.checkpoint_id(name) == number


@pytest.mark.parametrize("name", ["flights", "a", "_x", "A.b-c_1", "x" * 128])
def test_job_names(name: str) -> None:
    assert layout.validate_job_name(name) == name


@pytest.mark.parametrize("name", ["", "control", ".", "..", "a/b", "-a", "ä", "a b", "x" * 129, "a\n"])
def test_what_cannot_be_a_job_name(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="cannot be a job name") as raised:
        layout.validate_job_name(name)
    assert raised.value.hint


def test_job_ids() -> None:
    assert layout.is_job_id("0" * 32)
    assert not layout.is_job_id("0" * 31)
    assert not layout.is_job_id("G" * 32)
    assert not layout.is_job_id("control")
