"""What all tests share: one local Spark for the whole run, small and quiet."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.helpers.local_spark import set_up_jvms, small_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from dagster_ckpt.testing.kafka import KafkaServer
    from tests.servers.fake_gcs_server import FakeGcsServer
    from tests.servers.gcs import BucketServer
    from tests.servers.postgres import PostgresServer


# How long an example takes says how busy the machine is, not whether it is right.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

# A shell that starts the tests in its background ignores Ctrl-C for them. Dagster takes that over for SIGTERM, and then
# the programs that follow its logs cannot be ended.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

set_up_jvms()

_HERE = Path(__file__).parent
#: Directories whose files take minutes: what begins last would leave the other workers with nothing to do.
_LONG = tuple(
    _HERE / name
    for name in (
        "system/cluster",
        "jobs/matrix",
        "system/orchestration",
        "unit/orchestration",
        "system/storages",
        "jobs/stored_live",
        "jobs/zombies",
    )
)


#: Where every test runs whole jobs: they wait for `make test-integration`, but for those that are marked as quick.
_WHOLE = tuple(_HERE / name for name in ("jobs", "system"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((place for place, long in enumerate(_LONG) if item.path.is_relative_to(long)), len(_LONG))

    for item in items:
        if item.get_closest_marker("quick") is None and any(item.path.is_relative_to(whole) for whole in _WHOLE):
            item.add_marker("slow")
    items.sort(key=place)


def pytest_collection_finish() -> None:
    # Pytest has kept what it made of the tests, for the next run. A test may change a module within a second, and what
    # Python keeps of a module is told from that of another by the second of its change.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests of a worker."""
    session = small_spark(tmp_path_factory.mktemp("spark"), cores=2)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def fake_gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcsServer]:
    """The server of gs:// that others wrote, of all tests of a worker."""
    from tests.servers.fake_gcs_server import running  # noqa: PLC0415 - for the tests of gs:// only

    with running(tmp_path_factory.mktemp("fake-gcs-server") / "log") as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL of all tests of a worker."""
    from tests.servers.postgres import running  # noqa: PLC0415 - for the tests of PostgreSQL only

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def kafka(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """The broker of all tests of a worker, which Spark can read."""
    from dagster_ckpt.testing.kafka import connector, running  # noqa: PLC0415 - for the tests of Kafka only

    java = spark._jvm
    assert java is not None
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in connector(tmp_path_factory.mktemp("connector")):  # as if they had been named when Spark started
        loader.addURL(java.java.io.File(str(jar)).toURI().toURL())
    with running(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(params=["ours", pytest.param("fake-gcs-server", marks=pytest.mark.integration)])
def any_server(request: pytest.FixtureRequest) -> Iterator[BucketServer]:
    """Our server of gs:// and, in the integration tests, the other one, with one empty bucket."""
    from tests.servers.gcs import serving  # noqa: PLC0415 - for the tests of gs:// only

    with serving(request.param, request) as server:
        yield server
