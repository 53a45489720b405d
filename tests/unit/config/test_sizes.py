from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.config.quantities import format_size, measured_duration, parse_size


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("4096", 4096),
        ("0", 0),
        ("12 b", 12),
        ("12bytes", 12),
        ("20 kb", 20 * 1024),
        ("20KB", 20 * 1024),
        ("20 k", 20 * 1024),
        ("20 KiB", 20 * 1024),
        ("5 mb", 5 << 20),
        ("5 m", 5 << 20),
        (" 5 MiB ", 5 << 20),
        ("1 g", 1 << 30),
        ("1gibibytes", 1 << 30),
        ("2 tb", 2 << 40),
        (7, 7),
    ],
)
def test_what_people_write(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    "written", ["", " ", "kb", "1.5 mb", "-1", -1, "5 parsecs", "5 mb 3 kb", True, None, 1.5, b"1"]
)
def test_what_is_no_size_is_named(written: object) -> None:
    with pytest.raises(ValueError, match="is not a size") as raised:
        parse_size(written)
    assert repr(written) in str(raised.value)
    assert "'20 kb'" in str(raised.value)


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    try:
        assert parse_size(text) >= 0
    except ValueError as error:
        assert "is not a size" in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (5 << 30, "5.0 GiB"),
        (3_000 << 40, "3,000.0 TiB"),
    ],
)
def test_what_people_read(size: int, shown: str) -> None:
    assert format_size(size) == shown


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0 ms"),
        (0.0015, "0.002 ms"),
        (1.5, "1.5 ms"),
        (286.987, "287 ms"),
        (2_614, "2.61 s"),
        (90_000, "1.50 min"),
        (-90_000, "-1.50 min"),
        (5_400_000, "1.50 h"),
        (1_000 * 86_400_000, "1,000.00 d"),
    ],
)
def test_a_measured_time_has_the_unit_in_which_people_say_it(milliseconds: float, shown: str) -> None:
    assert measured_duration(milliseconds) == shown
