"""What a JVM is launched with: options for its start, in an environment variable that this process has only so long."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

__all__ = [
    "EXTRA_CLASS_PATH",
    "OPTIONS_VARIABLE",
    "USERS_OPTIONS",
    "compiler_option",
    "launched_for_a_short_start",
    "launched_with",
    "launched_with_compiler",
    "spark_home",
]

#: Options for the driver's JVM, before those of the session's conf, which win.
OPTIONS_VARIABLE = "SPARK_SUBMIT_OPTS"
EXTRA_CLASS_PATH = "spark.driver.extraClassPath"
#: Where a user sets options of the JVM.
USERS_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
#: The option by which Java loads classes with its own.
_PATH = "-Xbootclasspath"
#: Settings by which a session may want other classes than those in Spark's jars, and what they usually say.
_OWN_CLASSES = (("spark.driver.userClassPathFirst", "false"), ("spark.sql.hive.metastore.jars", "builtin"))
#: The compiler that Spark has for its own code.
_COMPILER = ("janino", "commons-compiler")
#: HotSpot's second compiler takes a third of the processor time of a start, most of it for code that runs only then.
#: These are its thresholds times ten: what a stream does in each batch reaches them within its first batches.
_LATE_OPTIMIZATION = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
#: One launch at a time: the variable is the process's. A thread may add more options within its launch.
_launching = threading.RLock()


@contextmanager
def launched_with(options: str) -> Iterator[None]:
    """Launch a JVM in this context with more options; those that the environment has come after them, and win."""
    with _launching:
        before = os.environ.get(OPTIONS_VARIABLE)
        os.environ[OPTIONS_VARIABLE] = f"{options} {before or ''}".strip()
        try:
            yield
        finally:
            if before is None:
                del os.environ[OPTIONS_VARIABLE]
            else:
                os.environ[OPTIONS_VARIABLE] = before


def launched_for_a_short_start() -> AbstractContextManager[None]:
    """Launch a JVM in this context that optimizes its code later; options of the user win."""
    return launched_with(_LATE_OPTIMIZATION)


def launched_with_compiler(conf: Mapping[str, str]) -> AbstractContextManager[None]:
    """Launch a JVM of a session's conf in this context that loads Spark's compiler as it loads Java's own classes."""
    return launched_with(compiler_option(conf))


def compiler_option(conf: Mapping[str, str]) -> str:
    """The option of such a JVM; empty where other classes may stand before Spark's own, or the user has set the option.

    The jars of the compiler, Janino, are signed. Java checks the signature of each class, which takes 0.3 s of the
    processor, and keeps no such class in an archive. Java believes the same jars beside its own classes.
    """
    home = spark_home()
    given = " ".join([os.environ.get(OPTIONS_VARIABLE, ""), *(conf.get(key, "") for key in USERS_OPTIONS)])
    if home is None or _PATH in given or conf.get(EXTRA_CLASS_PATH) or os.environ.get("SPARK_CLASSPATH"):
        return ""
    if any(conf.get(key, usual).lower() != usual for key, usual in _OWN_CLASSES):
        return ""
    if any(option in os.environ.get("PYSPARK_SUBMIT_ARGS", "") for option in ("driver-class-path", "driver-java-opt")):
        return ""
    found = [sorted((home / "jars").glob(f"{name}-[0-9]*.jar")) for name in _COMPILER]
    if not all(len(jars) == 1 for jars in found):
        return ""
    return f'"{_PATH}/a:{os.pathsep.join(str(jars[0]) for jars in found)}"'


def spark_home() -> Path | None:
    """The directory of the Spark that PySpark starts; ``None`` if there is none."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    found = importlib.util.find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent
