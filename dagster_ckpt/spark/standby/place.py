"""Which standby fits a configuration of Spark, and where it listens.

All that a JVM's start depends on goes into the name of the standby: Java, Spark, the jars and files that the conf
names, the conf itself, the environment, the directory that relative paths begin in, the host since its boot, the user.
So a standby of another configuration has another name. The environment may hold secrets: the name is a hash, and only
this user can list the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dagster_ckpt.checkpoint import DRIVER_VARIABLE, ProcessIdentity
from dagster_ckpt.filesystem import default_root
from dagster_ckpt.spark.jvm import java_and_spark
from dagster_ckpt.version import __version__

__all__ = ["Standby", "directory", "is_kept", "sweep"]

#: Variables that differ from run to run, or that Dagster sets in runs alone (for Snowflake), and tell the JVM nothing.
_OF_A_RUN = ("PYSPARK_GATEWAY", DRIVER_VARIABLE, "SF_PARTNER")
#: Keys of a conf, and variables, that name files or directories which the JVM reads.
_FILES = ("spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles", "spark.driver.extraClassPath")
_DIRECTORIES = ("SPARK_CLASSPATH", "SPARK_DIST_CLASSPATH", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
#: Seconds after which the files of a keeper that is gone are deleted: each boot and each environment has other names.
_UNUSED = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Standby:
    """The standby for one configuration of Spark.

    Attributes:
        name: of its files.
        conf: of its JVM.
        environment: of its JVM.
        class_archive: whether its JVM uses the class archive.
    """

    name: str
    conf: Mapping[str, str]
    environment: Mapping[str, str]
    class_archive: bool

    @classmethod
    def of(cls, conf: Mapping[str, str], *, class_archive: bool) -> Standby:
        """The standby for a conf, and for the environment that this process has now. Spark uses this Python.

        Raises:
            OSError: a file that the JVM depends on cannot be read.
        """
        environment = _environment()
        if "spark.pyspark.python" not in conf:
            environment = {"PYSPARK_PYTHON": sys.executable, **environment}
        named = [*map(conf.get, _FILES), *map(environment.get, _DIRECTORIES)]
        program = java_and_spark(conf)
        if program is not None and not environment.get("SPARK_CONF_DIR"):
            named.append(f"{program[3]}/conf")
        where = [ProcessIdentity.current().host, os.geteuid(), str(Path.cwd()), __version__, class_archive]
        of_user = [sorted(conf.items()), sorted(environment.items()), [_files(name) for name in named if name]]
        key = json.dumps([where, of_user, program])
        return cls(hashlib.sha256(key.encode()).hexdigest()[:32], conf, environment, class_archive)

    @property
    def early(self) -> str:
        """The name of a JVM that starts for a run that is launched now, and that is not warmed up."""
        return f"{self.name}-early"

    def asked(self, *, early: bool) -> bytes:
        """What the keeper reads: not on its command line, which every user can read."""
        asked = {"conf": dict(self.conf), "class_archive": self.class_archive, "early": early}
        return json.dumps(asked).encode() + b"\n"


@cache
def _environment() -> Mapping[str, str]:
    """The environment of this process before its first Spark, as that of a new process will be: PySpark adds to it."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_OF_A_RUN)}


def directory() -> Path:
    """Where the standbys of this user listen."""
    return default_root() / "standby"


def is_kept(name: str) -> bool:
    """Whether a keeper of a standby with this name lives: it holds a lock. One that was killed leaves its files."""
    try:
        with (directory() / f"{name}.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def sweep() -> None:
    """Delete the files of keepers that have begun long ago and are gone."""
    with contextlib.suppress(OSError):  # the directory cannot be read
        for lock in directory().glob("*.lock"):
            with contextlib.suppress(OSError):  # it is kept, or another process sweeps, too
                if time.time() - lock.stat().st_mtime > _UNUSED:
                    with lock.open("rb") as held:
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(lock.with_suffix(".warm"), ignore_errors=True)
                        for left in (".sock", ".log", ".lock"):
                            lock.with_suffix(left).unlink(missing_ok=True)


def _files(named: str) -> list[tuple[str, int, int]]:
    """The files of a list or class path, and those in its directories, each with its size and time."""
    above = [found for part in re.split("[,:]", named) if part for found in glob.glob(part)]  # noqa: PTH207
    paths = sorted({path for found in above for path in (found, *glob.glob(f"{found}/*"))})  # noqa: PTH207
    return [(path, found.st_size, found.st_mtime_ns) for path in paths for found in [Path(path).stat()]]
