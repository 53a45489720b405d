from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dagster_ckpt.testing.dagster_dev import DagsterDev
from tests.servers.postgres import running
from tests.system.orchestration.pipeline import Pipeline
from tests.system.orchestration.watch import JobWatch, dagster_dev

_HERE = Path(__file__).parent


class SharedDagster:
    """One Dagster for every scenario that leaves Dagster itself alone.

    Its instance is in PostgreSQL; those of the other scenarios are in SQLite. It is stopped after the last of its
    scenarios and not at the end of all tests: its daemon is never idle.
    """

    def __init__(self, root: Path, make_home: Callable[[], Path]) -> None:
        self._root = root
        self._make_home = make_home
        self._running: DagsterDev | None = None
        self._stack = ExitStack()

    def dev(self) -> DagsterDev:
        """It, started when it is not running."""
        if self._running is None:
            server = self._stack.enter_context(running())
            url = server.url(server.database())
            self._running = self._stack.enter_context(dagster_dev(self._root, self._make_home(), url))
            with self._running.instance() as instance:
                assert type(instance.run_storage).__name__ == "PostgresRunStorage"
        return self._running

    def stop(self) -> None:
        """Stop it, if it is running."""
        self._running = None
        self._stack.close()


_shared: list[SharedDagster] = []


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None or not nextitem.path.is_relative_to(_HERE):
        for shared in _shared:
            shared.stop()


@pytest.fixture(scope="session")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="session")
def shared_dagster(shared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDagster]:
    shared = SharedDagster(shared_root, lambda: tmp_path_factory.mktemp("dagster_home"))
    _shared.append(shared)
    yield shared
    _shared.remove(shared)
    shared.stop()


@pytest.fixture
def watch(shared_root: Path, shared_dagster: SharedDagster) -> Callable[[str], JobWatch]:
    """A watch over the pipeline of that name, which only one test may use."""
    return lambda name: JobWatch(shared_dagster.dev(), Pipeline(shared_root, name))
