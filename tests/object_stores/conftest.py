from __future__ import annotations

from collections.abc import Iterator

import pytest

from dagster_ckpt.testing.gcs_server import GcsServer
from tests.gcs import BUCKET


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as running:
        running.create_bucket(BUCKET)
        yield running
