"""Hadoop's local file system without the processes that Hadoop starts: a batch's files are written in half of the time.

``LocalFiles.java`` tells what it changes. A JVM that has started compiles it by the compiler that Spark has for its own
code, because a Java that only runs programs has none, and takes the classes from memory. They are defined beside
Hadoop's own, in the same package and by the same class loader, so every thread that finds those finds these.

Only a JVM that is driver and executor in one gets them: executors elsewhere would not find the classes.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["IN_THIS_PROCESS", "SOURCE", "compiled", "load_local_files", "local_files_conf"]

_log = logging.getLogger(__name__)

#: Masters whose executor is the driver's process.
IN_THIS_PROCESS = re.compile(r"local(\[|$)")
#: What is compiled.
SOURCE = Path(__file__).with_name("LocalFiles.java")
_CLASS = "org.apache.hadoop.fs.DagsterCkptLocalFiles"
_CLASSES = (f"{_CLASS}$Raw", f"{_CLASS}$RawContext", _CLASS, f"{_CLASS}$Context")
_HADOOPS = "org.apache.hadoop.fs.LocalFileSystem"
#: Hadoop's older and newer interface. A user who sets one of them, here or in Hadoop's files, decides about both.
_CONF = {"spark.hadoop.fs.file.impl": _CLASS, "spark.hadoop.fs.AbstractFileSystem.file.impl": f"{_CLASS}$Context"}
#: What Hadoop's files say about them where nobody has set them.
_UNSET = {"fs.file.impl": None, "fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs"}
#: What a JVM of this process has compiled, by the source.
_known: dict[str, dict[str, bytes]] = {}
#: Where PySpark finds a JVM that is there.
_GATEWAY = "PYSPARK_GATEWAY_PORT"


def load_local_files(jvm: Any, conf: Mapping[str, str]) -> None:
    """Load the classes into a JVM that has just started.

    No error leaves this function: without the classes, Hadoop's own are used.

    Args:
        jvm: PySpark's view of it.
        conf: what the JVM was launched with.
    """
    try:
        if not _wanted(jvm, conf) or _has_classes(jvm):
            return
        java = jvm.java.lang
        lookup = java.invoke.MethodHandles.lookup()
        beside = java.invoke.MethodHandles.privateLookupIn(java.Class.forName(_HADOOPS), lookup)
        for classfile in compiled(jvm).values():
            beside.defineClass(classfile)
        # The start of the JVM may have left a file system of Hadoop's own, which would be used for ever.
        jvm.org.apache.hadoop.fs.FileSystem.closeAll()
    except Exception as error:  # they save time, and are needed by nobody
        _log.warning("Spark writes local files by processes of Hadoop: %s", error)


def local_files_conf(jvm: Any, conf: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of a Spark that is started in a JVM with the classes; empty if the JVM lacks them.

    They are empty, too, where the user's settings or Hadoop's files name another local file system.

    Args:
        jvm: PySpark's view of it.
        conf: the other settings.
    """
    return _CONF if _wanted(jvm, conf) and _has_classes(jvm) else {}


def compiled(jvm: Any) -> dict[str, bytes]:
    """The class files that a JVM of Spark compiles, by the names of the classes; each after those that it uses.

    A process that replaces a lost JVM does not compile them again.

    Raises:
        py4j.protocol.Py4JError: the JVM has failed.
    """
    hadoop = jvm.org.apache.hadoop
    used = str(hadoop.fs.FileSystem.getFileSystemClass("file", hadoop.conf.Configuration()).getName())
    source = SOURCE.read_text(encoding="utf-8").replace("extends LocalFileSystem", f"extends {used}")
    if source not in _known:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(source)
        classes = compiler.getBytecodes()
        _known[source] = {name: bytes(classes[name]) for name in _CLASSES}
    return _known[source]


def _wanted(jvm: Any, conf: Mapping[str, str]) -> bool:
    if _GATEWAY in os.environ:  # spark-submit has launched the JVM
        return False
    if not IN_THIS_PROCESS.match(conf.get("spark.master", "")) or any(key in conf for key in _CONF):
        return False
    hadoops = jvm.org.apache.hadoop.conf.Configuration()
    return all(hadoops.get(key) == default for key, default in _UNSET.items())


def _has_classes(jvm: Any) -> bool:
    try:
        for name in _CLASSES:
            jvm.java.lang.Class.forName(name)
    except Exception:  # the JVM does not find it, or is gone
        return False
    return True
