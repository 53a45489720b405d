"""What a page at the port of a master's web page says about its Spark; real masters are in the system tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dagster_ckpt.errors import SparkNotStarted
from dagster_ckpt.orchestration.attending import cluster_release
from dagster_ckpt.orchestration.attending.cluster_release import check_release
from tests.servers.ports import free_port

MASTER = "spark://127.0.0.1:7077"
#: The head of the page of a master.
PAGE = """<h3><a href="/"><img src="/static/spark-logo.svg"/> <span class="version me-3">{release}</span></a>
Spark Master at spark://host:{port}</h3>"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-launcher_2.13-4.3.0.jar").touch()
    return tmp_path


@contextmanager
def page(content: str, workers: str = "", *, to: str = "", drips: bool = False) -> Iterator[dict[str, str]]:
    """A web page, what it tells of its Workers as JSON, and the conf of a driver that finds it.

    The page leads ``to`` another one, or ``drips`` until nobody listens.
    """
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if to else 200)
            if to:
                self.send_header("Location", to)
            self.end_headers()
            self.wfile.write((workers if self.path == "/json/" else content).encode())
            while drips and not is_over.wait(0.05):
                self.wfile.write(b" ")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield {"spark.master.ui.port": str(server.server_port)}
        is_over.set()
        server.shutdown()


@pytest.mark.parametrize("release", ["4.3.0", "4.3.0\n"])
def test_the_same_release_is_fine(home: Path, release: str) -> None:
    with page(PAGE.format(release=release, port=7077)) as conf:
        assert check_release(MASTER, conf, home) is None


@pytest.mark.parametrize("release", ["4.2.1", "4.30.0", "3.5.6-amzn-1"])
def test_another_release_is_refused(home: Path, release: str) -> None:
    with page(PAGE.format(release=release, port=7077)) as conf, pytest.raises(SparkNotStarted) as raised:
        check_release(MASTER, conf, home)
    assert raised.value.message == (
        f"The Spark master at {MASTER} has Spark {release}, and the driver is submitted with 4.3.0. No driver was "
        "started."
    )
    assert f"Install pyspark {release}" in raised.value.hint


def test_a_release_that_mends_this_one_is_told(home: Path) -> None:
    with page(PAGE.format(release="4.3.1", port=7077)) as conf:
        told = check_release(MASTER, conf, home)
    assert told is not None
    assert "has Spark 4.3.1, and the driver is submitted with 4.3.0. Spark does not promise" in told


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="nothing"),
        pytest.param(PAGE.format(release="4.2.1", port=7078), id="another master of this host"),
        pytest.param('<span class="version">4.2.1</span>', id="another service"),
    ],
)
def test_a_page_that_is_not_of_this_master_tells_nothing(home: Path, content: str) -> None:
    with page(content) as conf:
        told = check_release(MASTER, conf, home)
    assert told is not None
    assert "it must be 4.3.0" in told
    assert "set spark.master.ui.port in conf" in told


def test_of_several_masters_the_first_page_that_is_there_tells(home: Path) -> None:
    with page(PAGE.format(release="4.2.1", port=7077)) as conf, pytest.raises(SparkNotStarted):
        check_release("spark://localhost.invalid:7077,127.0.0.1:7077", conf, home)


def test_without_a_page_nothing_is_known(home: Path) -> None:
    told = check_release(MASTER, {"spark.master.ui.port": str(free_port())}, home)
    assert told is not None
    assert told.startswith("No web page at port")


@pytest.mark.parametrize("master", ["yarn", "local[2]"])
def test_other_cluster_managers_are_not_asked(home: Path, master: str) -> None:
    with page(PAGE.format(release="4.2.1", port=7077)) as conf:
        assert check_release(master, conf, home) is None


def test_a_spark_without_the_jar_is_not_compared(tmp_path: Path) -> None:
    with page(PAGE.format(release="4.2.1", port=7077)) as conf:
        assert check_release(MASTER, conf, tmp_path) is None


#: The head of the page of a Worker.
OF_WORKER = PAGE.replace("Spark Master at spark://host:{port}", "Spark Worker at 127.0.0.1:{port}")


@contextmanager
def with_worker(release: str, state: str = "ALIVE") -> Iterator[dict[str, str]]:
    """The page of a master of this release, with one Worker; and the conf of a driver that finds it."""
    with page(OF_WORKER.format(release=release, port=1)) as of_worker:
        url = f"http://127.0.0.1:{of_worker['spark.master.ui.port']}"
        workers = json.dumps({"workers": [{"state": state, "webuiaddress": url}]})
        with page(PAGE.format(release="4.3.0", port=7077), workers) as conf:
            yield conf


def test_a_worker_of_the_same_release_is_fine(home: Path) -> None:
    with with_worker("4.3.0") as conf:
        assert check_release(MASTER, conf, home) is None


def test_a_worker_of_another_release_is_named(home: Path) -> None:
    with with_worker("4.2.1") as conf, pytest.raises(SparkNotStarted) as raised:
        check_release(MASTER, conf, home)
    assert raised.value.message.startswith("The Worker at http://127.0.0.1:")
    assert "of the Spark master at spark://127.0.0.1:7077 has Spark 4.2.1, and" in raised.value.message
    assert raised.value.message.endswith("the driver is submitted with 4.3.0. No driver was started.")


@pytest.mark.parametrize("url", ["http://me@127.0.0.1:{port}", "http://127.0.0.1:{port}?at=", "ftp://127.0.0.1"])
def test_only_an_address_is_asked_for_a_worker(home: Path, url: str) -> None:
    with page(OF_WORKER.format(release="4.2.1", port=1)) as of_worker:
        listed = url.format(port=of_worker["spark.master.ui.port"])
        workers = json.dumps({"workers": [{"state": "ALIVE", "webuiaddress": listed}]})
        with page(PAGE.format(release="4.3.0", port=7077), workers) as conf:
            assert check_release(MASTER, conf, home) is None


def test_a_page_leads_nowhere_else(home: Path) -> None:
    with (
        page(PAGE.format(release="4.2.1", port=7077)) as conf,
        page("", to=f"http://127.0.0.1:{conf['spark.master.ui.port']}") as led,
    ):
        told = check_release(MASTER, led, home)
    assert told is not None
    assert told.startswith("No web page")


@pytest.mark.parametrize("workers", ["[" * 100_000, '{"workers": 3}', '{"workers": [{}]}', "no JSON"])
def test_what_is_no_list_of_workers_tells_nothing(home: Path, workers: str) -> None:
    with page(PAGE.format(release="4.3.0", port=7077), workers) as conf:
        assert check_release(MASTER, conf, home) is None


def test_a_page_that_does_not_end_is_left(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_release, "_PATIENCE", 0.5)
    with page(PAGE.format(release="4.2.1", port=7077), drips=True) as conf, pytest.raises(SparkNotStarted):
        check_release(MASTER, conf, home)


def test_a_worker_that_is_lost_does_not_count(home: Path) -> None:
    with with_worker("4.2.1", state="DEAD") as conf:
        assert check_release(MASTER, conf, home) is None


@pytest.mark.parametrize(
    "workers",
    [
        "[]",
        '{"workers": 3}',
        '{"workers": [{"state": "ALIVE"}]}',
        '{"workers": [{"state": "ALIVE", "webuiaddress": "file:///etc/passwd"}]}',
    ],
)
def test_what_a_master_tells_otherwise_of_its_workers_is_left_out(home: Path, workers: str) -> None:
    with page(PAGE.format(release="4.3.0", port=7077), workers) as conf:
        assert check_release(MASTER, conf, home) is None
