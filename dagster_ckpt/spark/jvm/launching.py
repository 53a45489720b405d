"""What a JVM is launched with: options for its start, in environment variables that this process has only so long."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Mapping
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
#: One launch at a time, which may change several variables.
_launching = threading.RLock()


@contextmanager
def launched_with(variable: str, change: Callable[[str], str]) -> Iterator[None]:
    """Launch a JVM in this context with another value of an environment variable.

    Args:
        variable: its name.
        change: takes the present value, or an empty text if the variable is not set; returns the other value.
    """
    with _launching:
        before = os.environ.get(variable)
        os.environ[variable] = change(before or "")
        try:
            yield
        finally:
            if before is None:
                del os.environ[variable]
            else:
                os.environ[variable] = before


def launched_for_a_short_start() -> AbstractContextManager[None]:
    """Launch a JVM in this context that optimizes its code later; options of the user win."""
    return launched_with(OPTIONS_VARIABLE, lambda before: f"{_LATE_OPTIMIZATION} {before}".strip())


def launched_with_compiler(conf: Mapping[str, str]) -> AbstractContextManager[None]:
    """Launch a JVM of a session's conf in this context that loads Spark's compiler as it loads Java's own classes."""
    option = compiler_option(conf)
    return launched_with(OPTIONS_VARIABLE, lambda before: f"{option} {before}".strip())


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
