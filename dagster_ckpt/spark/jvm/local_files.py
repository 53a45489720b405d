"""Hadoop's local file system without the processes that Hadoop starts: a batch's files are written in half of the time.

``LocalFiles.java`` tells what it changes. The JVM compiles it when it has started, by the compiler that Spark has for
its own code, because a Java that only runs programs has none. The classes are found by every thread of the JVM: they
come from a directory on its class path, which is empty at the launch and deleted once they are loaded.

Only a JVM that is driver and executor in one gets them: executors elsewhere would not find the classes.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dagster_ckpt.spark.jvm.launching import launched_with

__all__ = ["IN_THIS_PROCESS", "SOURCE", "local_files_conf", "with_local_files", "write_classes"]

_log = logging.getLogger(__name__)

#: Masters whose executor is the driver's process.
IN_THIS_PROCESS = re.compile(r"local(\[|$)")
#: What is compiled.
SOURCE = Path(__file__).with_name("LocalFiles.java")
_CLASS = "dagster_ckpt.LocalFiles"
#: Hadoop's older and newer interface. A user who sets one of them decides about both.
_CONF = {
    "spark.hadoop.fs.file.impl": _CLASS,
    "spark.hadoop.fs.AbstractFileSystem.file.impl": f"{_CLASS}$Context",
}
#: Where PySpark finds a JVM that is there.
_GATEWAY = "PYSPARK_GATEWAY_PORT"
#: What Spark puts behind its own jars.
_CLASS_PATH = "SPARK_DIST_CLASSPATH"


@contextmanager
def with_local_files(conf: Mapping[str, str]) -> Iterator[Callable[[Any], None]]:
    """Let a JVM that is launched in this context have the classes.

    No error of the classes leaves this function or its result: without them, Hadoop's own are used.

    Args:
        conf: what the JVM is launched with.

    Yields:
        a function that loads the classes, once the JVM (PySpark's view of it) is there.
    """
    directory = _directory() if _wanted(conf) else None
    if directory is None:
        yield lambda _: None
        return
    try:
        with launched_with(_CLASS_PATH, lambda before: f"{before}:{directory}/" if before else f"{directory}/"):
            yield partial(_load, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def local_files_conf(jvm: Any, conf: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of a Spark that is started in a JVM with the classes; empty if the JVM lacks them.

    Args:
        jvm: PySpark's view of it.
        conf: the other settings.
    """
    return _CONF if _wanted(conf) and _has_classes(jvm) else {}


def write_classes(jvm: Any, directory: Path) -> list[str]:
    """Compile the classes in a JVM of Spark, and write them to a directory of a class path; returns their names.

    Raises:
        py4j.protocol.Py4JError: the JVM has failed.
        OSError: the directory cannot be written to.
    """
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SOURCE.read_text(encoding="utf-8"))
    classes = compiler.getBytecodes()
    names = [str(name) for name in list(classes.keySet())]
    for name in names:
        path = directory / f"{name.replace('.', '/')}.class"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(classes[name]))
    return names


def _wanted(conf: Mapping[str, str]) -> bool:
    if _GATEWAY in os.environ:  # spark-submit has launched the JVM
        return False
    return bool(IN_THIS_PROCESS.match(conf.get("spark.master", ""))) and not any(key in conf for key in _CONF)


def _directory() -> Path | None:
    try:
        return Path(tempfile.mkdtemp(prefix="dagster-ckpt-classes-"))
    except OSError as error:
        _log.warning("Spark writes local files by processes of Hadoop: %s", error)
        return None


def _load(directory: Path, jvm: Any) -> None:
    try:
        if _has_classes(jvm):  # they were on its class path before
            return
        for name in write_classes(jvm, directory):
            jvm.java.lang.Class.forName(name)
        # The start of the JVM may have left a file system of Hadoop's own, which would be used for ever.
        jvm.org.apache.hadoop.fs.FileSystem.closeAll()
    except Exception as error:  # they save time, and are needed by nobody
        _log.warning("Spark writes local files by processes of Hadoop: %s", error)


def _has_classes(jvm: Any) -> bool:
    try:
        jvm.java.lang.Class.forName(_CLASS)
    except Exception:  # the JVM does not find it, or is gone
        return False
    return True
