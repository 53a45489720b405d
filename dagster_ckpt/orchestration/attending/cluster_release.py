"""The release of Spark of a standalone master and of its Workers, which their web pages alone tell.

A master takes drivers and Workers of other releases, and the Workers run the drivers: what fails then fails later and
by other names.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from time import monotonic

from dagster_ckpt.errors import SparkNotStarted

__all__ = ["check_release"]

_STANDALONE = "spark://"
#: The setting of a master for the port of its web page, and where the page is without it.
_PORT, _USUAL_PORT = "spark.master.ui.port", "8080"
#: Seconds for the first bytes of a page, and for all of it.
_PATIENCE = 5.0
#: Bytes of the page: what is looked for stands before the tables.
_MOST = 100_000
#: Workers whose pages are looked at, side by side; and the bytes that a master may say of all its Workers.
_WORKERS, _MOST_OF_WORKERS = 64, 10_000_000
_RELEASE = re.compile(r'class="version\b[^>]*>\s*((\d+\.\d+)[^\s<]*)')
_WORKER_PAGE = re.compile(r"https?://[\w.:\[\]-]+")
_MASTER = re.compile(r"Spark Master at spark://[^\s<]*:(\d+)")
_JAR = re.compile(r"spark-launcher_[\d.]+-((\d+\.\d+).*)\.jar")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A Worker names its page to the master by itself: the page leads nowhere else."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing."""


#: The master is this machine's neighbour, and no proxy is asked.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect()).open


def check_release(master: str, conf: Mapping[str, str], spark_home: Path) -> str | None:
    """Make sure that a standalone master, and its Workers, have the Spark that a driver is submitted with.

    Args:
        master: the URL of the master; nothing is asked of other cluster managers.
        conf: of Spark, which may name the port of the web page.
        spark_home: the Spark whose spark-submit is used.

    Returns:
        what could not be made sure of, for the log; ``None`` if the releases are the same.

    Raises:
        SparkNotStarted: the master or a Worker has another major or minor release.
    """
    here = next(
        (found for jar in (spark_home / "jars").glob("spark-launcher_*.jar") if (found := _JAR.match(jar.name))), None
    )
    if not master.startswith(_STANDALONE) or here is None:
        return None
    ui = conf.get(_PORT, _USUAL_PORT)
    places = [place.rpartition(":") for place in master.removeprefix(_STANDALONE).split(",")]
    asked = ((f"http://{host}:{ui}", port) for host, _, port in places)
    page, told = next(((url, found) for url, port in asked if (found := _told(url, port))), ("", None))
    if told is None:
        return (
            f"No web page at port {ui} tells which Spark the master at {master} has; it must be {here[1]}. If the page "
            f"is at another port, set {_PORT} in conf."
        )
    unsure = _compared(f"The Spark master at {master}", told, here)
    for worker, found in _workers(page):
        unsure = _compared(f"The Worker at {worker} of the Spark master at {master}", found, here) or unsure
    return unsure


def _compared(what: str, told: re.Match[str], here: re.Match[str]) -> str | None:
    """What cannot be made sure of, as :func:`check_release`."""
    if told[1] == here[1]:
        return None
    differ = f"{what} has Spark {told[1]}, and the driver is submitted with {here[1]}"
    if told[2] == here[2]:
        return f"{differ}. Spark does not promise that the two work together."
    raise SparkNotStarted(
        f"{differ}. No driver was started.",
        hint=f"Install pyspark {told[1]} where the Dagster run and the driver are (and set spark_home of "
        f"SparkSubmitResource if its Spark is elsewhere), or set master to a cluster that has Spark {here[1]}.",
    )


def _workers(page: str) -> Iterator[tuple[str, re.Match[str]]]:
    """The page and the release of each living Worker of a master, as far as their pages can be reached from here."""
    urls: list[str] = []
    with suppress(
        ValueError, TypeError, KeyError, AttributeError, RecursionError
    ):  # another release may tell it otherwise
        workers = json.loads(_page(f"{page}/json/", _MOST_OF_WORKERS)).get("workers", ())
        living = [worker["webuiaddress"] for worker in workers if worker["state"] == "ALIVE"]
        urls = [url for url in living if _WORKER_PAGE.fullmatch(url)]
    with ThreadPoolExecutor(_WORKERS) as pool:
        pages = pool.map(_page, urls[:_WORKERS])
        for url, content in zip(urls, pages, strict=False):
            if "Spark Worker at" in content and (found := _RELEASE.search(content)):
                yield url, found


def _told(url: str, port: str) -> re.Match[str] | None:
    """The release on the page of the master that listens at a port."""
    page = _page(url)
    is_of = _MASTER.search(page)
    return _RELEASE.search(page) if is_of is not None and is_of[1] == port else None


def _page(url: str, most: int = _MOST) -> str:
    """What a page says in time, nothing where nothing answers."""
    content, until = b"", monotonic() + _PATIENCE
    try:
        with _open(url, timeout=_PATIENCE) as reply:
            while monotonic() < until and len(content) < most and (part := reply.read1(most - len(content))):
                content += part
    except (OSError, ValueError, HTTPException):
        return ""
    return content.decode("utf-8", "replace")
