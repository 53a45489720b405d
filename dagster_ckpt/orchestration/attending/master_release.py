"""The release of Spark of a standalone master, which its web page alone tells.

A master takes drivers of other releases, and its Workers run them: what fails then fails later and by other names.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path

from dagster_ckpt.errors import SparkNotStarted

__all__ = ["check_release"]

_STANDALONE = "spark://"
#: The setting of a master for the port of its web page, and where the page is without it.
_PORT, _USUAL_PORT = "spark.master.ui.port", "8080"
#: Seconds for the page.
_PATIENCE = 5.0
#: Bytes of the page: what is looked for stands before the tables.
_MOST = 100_000
_RELEASE = re.compile(r'class="version\b[^>]*>\s*((\d+\.\d+)[^\s<]*)')
_MASTER = re.compile(r"Spark Master at spark://[^\s<]*:(\d+)")
_JAR = re.compile(r"spark-launcher_[\d.]+-((\d+\.\d+).*)\.jar")
#: The master is this machine's neighbour, and no proxy is asked.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def check_release(master: str, conf: Mapping[str, str], spark_home: Path) -> str | None:
    """Make sure that a standalone master has the Spark that a driver is submitted with.

    Args:
        master: the URL of the master; nothing is asked of other cluster managers.
        conf: of Spark, which may name the port of the web page.
        spark_home: the Spark whose spark-submit is used.

    Returns:
        what could not be made sure of, for the log; ``None`` if the releases are the same.

    Raises:
        SparkNotStarted: the master has another major or minor release.
    """
    here = next(
        (found for jar in (spark_home / "jars").glob("spark-launcher_*.jar") if (found := _JAR.match(jar.name))), None
    )
    if not master.startswith(_STANDALONE) or here is None:
        return None
    ui = conf.get(_PORT, _USUAL_PORT)
    places = [place.rpartition(":") for place in master.removeprefix(_STANDALONE).split(",")]
    told = next((found for host, _, port in places if (found := _told(f"http://{host}:{ui}/", port))), None)
    if told is None:
        return (
            f"No web page at port {ui} tells which Spark the master at {master} has; it must be {here[1]}. If the page "
            f"is at another port, set {_PORT} in conf."
        )
    if told[1] == here[1]:
        return None
    differ = f"The Spark master at {master} has Spark {told[1]}, and the driver is submitted with {here[1]}"
    if told[2] == here[2]:
        return f"{differ}. Spark does not promise that the two work together."
    raise SparkNotStarted(
        f"{differ}. No driver was started.",
        hint=f"Install pyspark {told[1]} where the Dagster run and the driver are (and set spark_home of "
        f"SparkSubmitResource if its Spark is elsewhere), or set master to a cluster that has Spark {here[1]}.",
    )


def _told(url: str, port: str) -> re.Match[str] | None:
    """The release on the page of the master that listens at a port."""
    try:
        with _open(url, timeout=_PATIENCE) as reply:
            page = reply.read(_MOST).decode("utf-8", "replace")
    except (OSError, ValueError, HTTPException):
        return None
    is_of = _MASTER.search(page)
    return _RELEASE.search(page) if is_of is not None and is_of[1] == port else None
