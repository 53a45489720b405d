"""Requests to the servers of Google Cloud Storage's API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dagster_ckpt.testing.gcs.server import GcsServer
from tests.servers import gcs
from tests.unit.testing.gcs.conversation import Conversation


@pytest.fixture
def conversation(any_server: gcs.BucketServer) -> Iterator[Conversation]:
    told = Conversation(any_server.url, isinstance(any_server, GcsServer))
    yield told
    told.session.close()
