"""A Delta whose writer has other parameters than any that is known is refused before a table is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.spark.sinks.delta.releases import more_parameters


@dataclass(frozen=True)
class Classes:
    """A class loader of Java's, with as many parameters as the only constructor of a class has."""

    parameters: Mapping[str, int]

    def loadClass(self, name: str) -> Class:  # noqa: N802 - Java's name
        return Class(self.parameters[name.removeprefix("org.apache.spark.sql.delta.")])


@dataclass(frozen=True)
class Class:
    """Such a class, and its constructor."""

    count: int

    def getConstructors(self) -> list[Class]:  # noqa: N802 - Java's name
        return [self]

    def getParameterCount(self) -> int:  # noqa: N802 - Java's name
        return self.count


def delta(writer: int, operation: int) -> Classes:
    return Classes({"commands.WriteIntoDelta": writer, "DeltaOperations$Write": operation})


@pytest.mark.parametrize(
    ("writer", "operation", "more"), [(8, 4, (0, 0)), (8, 7, (0, 3)), (9, 9, (1, 5))], ids=["4.0", "4.2", "4.4"]
)
def test_what_the_known_releases_have_more(writer: int, operation: int, more: tuple[int, int]) -> None:
    assert more_parameters(delta(writer, operation)) == more


@pytest.mark.parametrize("classes", [delta(10, 9), delta(9, 4), Classes({"commands.WriteIntoDelta": 9})])
def test_an_unknown_delta_is_refused(classes: Classes) -> None:
    with pytest.raises(InvalidConfiguration, match="does not know how the Delta of this Spark writes"):
        more_parameters(classes)
