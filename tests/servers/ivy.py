"""Jars from Maven Central, by the Ivy that comes with Spark. Its cache is the user's: each is fetched once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

__all__ = ["alone", "classpath", "classpath_of", "hadoop_version", "spark_jars"]

_CLIENT = "hadoop-client-api-"
#: Some jars are bundles of OSGi.
_TYPES = ("-types", "jar", "bundle")
#: A jar that has everything in it needs nothing that its description names.
_SHADED = """
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false"
             pattern="[organisation]/[module]/[revision]/[module]-[revision]-shaded.[ext]"/>
  </resolvers>
</ivysettings>
"""


@contextmanager
def alone() -> Iterator[None]:
    """Nobody else fetches with Ivy meanwhile: of two that fill its cache at once, each finds the other's half files."""
    with (Path(tempfile.gettempdir()) / "dagster-ckpt-tests-ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def spark_jars() -> Path:
    """The directory of Spark's own jars."""
    return Path(_find_spark_home()) / "jars"


def hadoop_version() -> str:
    """Of Spark's own Hadoop."""
    (client,) = spark_jars().glob(f"{_CLIENT}*.jar")
    return client.stem.removeprefix(_CLIENT)


def classpath(scratch: Path, organisation: str, module: str, revision: str, *, shaded: bool = False) -> str:
    """An artifact and what it needs, as a class path.

    Args:
        scratch: a directory for what Ivy is told and tells.
        organisation: whose it is.
        module: its name.
        revision: its version.
        shaded: take the jar that has everything in it, and nothing else.
    """
    settings = scratch / f"ivysettings-{module}-{os.getpid()}.xml"
    settings.write_text(_SHADED, encoding="utf-8")
    how = ["-settings", str(settings)] if shaded else []
    return _resolved(scratch, module, *how, "-dependency", organisation, module, revision)


def classpath_of(scratch: Path, name: str, description: str) -> str:
    """Several artifacts and what they need, as a class path.

    Args:
        scratch: a directory for what Ivy is told and tells.
        name: of the description.
        description: a file of Ivy's.
    """
    file = scratch / f"ivy-{name}-{os.getpid()}.xml"
    file.write_text(description, encoding="utf-8")
    return _resolved(scratch, name, "-ivy", str(file))


def _resolved(scratch: Path, name: str, *wanted: str) -> str:
    (ivy,) = spark_jars().glob("ivy-*.jar")
    found = scratch / f"classpath-{name}-{os.getpid()}"
    with alone():
        done = subprocess.run(
            ["java", "-jar", str(ivy), *wanted, "-confs", "default", *_TYPES, "-cachepath", str(found)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"Ivy does not find {wanted}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
    return found.read_text(encoding="utf-8").strip()
