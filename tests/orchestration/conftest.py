from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_ckpt.testing.dagster_dev import DagsterDev
from tests.orchestration.pipeline import Pipeline
from tests.orchestration.watch import JobWatch, dagster_dev


@pytest.fixture(scope="session")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="session")
def shared_dev(shared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterDev]:
    """One Dagster for every scenario that leaves Dagster itself alone."""
    with dagster_dev(shared_root, tmp_path_factory.mktemp("dagster_home")) as dev:
        yield dev


@pytest.fixture
def watch(shared_root: Path, shared_dev: DagsterDev) -> Callable[[str], JobWatch]:
    """A watch over the pipeline of that name, which only one test may use."""
    return lambda name: JobWatch(shared_dev, Pipeline(shared_root, name))
