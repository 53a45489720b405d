"""Jars from Maven Central, by the Ivy that comes with Spark. Its cache is the user's: each is fetched once."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

__all__ = ["DELTA", "Artifact", "alone", "beside_spark", "classpath", "classpath_of", "hadoop_version", "spark_jars"]

Artifact = tuple[str, str, str]
"""Organisation, module and revision in Maven's repository."""

DELTA: dict[str, Artifact] = {
    release: ("io.delta", f"delta-spark_{release}_2.13", "4.4.0") for release in ("4.0", "4.1", "4.2")
}
"""Delta, by the release of Spark that Delta is for. Newer releases of Spark have no Delta yet."""

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


def beside_spark(scratch: Path, artifact: Artifact) -> list[Path]:
    """The jars of an artifact, and of what it needs, that Spark itself does not have in any version.

    Args:
        scratch: a directory for what Ivy is told and tells.
        artifact: organisation, module and revision.
    """
    there = {_module(jar) for jar in spark_jars().glob("*.jar")}
    jars = map(Path, classpath(scratch, *artifact).split(os.pathsep))
    return [jar for jar in jars if _module(jar) not in there]


def _module(jar: Path) -> str:
    return re.sub(r"-\d.*", "", jar.stem)


def _resolved(scratch: Path, name: str, *wanted: str) -> str:
    (ivy,) = spark_jars().glob("ivy-*.jar")
    found = scratch / f"classpath-{name}-{os.getpid()}"
    command = ["java", "-jar", str(ivy), *wanted, "-confs", "default", *_TYPES, "-cachepath", str(found)]
    with alone():
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"Ivy does not find {wanted}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return found.read_text(encoding="utf-8").strip()
