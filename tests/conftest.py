"""What all tests share: one local Spark for the whole run, small and quiet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.local_spark import small_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


# How long an example takes says how busy the machine is, not whether it is right.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests of a worker."""
    session = small_spark(tmp_path_factory.mktemp("spark"), cores=2)
    yield session
    session.stop()
