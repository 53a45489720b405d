from __future__ import annotations

from collections.abc import Iterator

import pytest

from dagster_ckpt.testing.gcs_server import GcsServer
from tests.gcs import BUCKET, answering_at_once


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as running:
        running.create_bucket(BUCKET)
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long gcsfs waits before it asks again is not what is tested."""
    answering_at_once(monkeypatch)
