"""An environment with Apache Flink, for what is measured beside Flink: ``.venv-flink-2.3.0``."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.pip_environment import pip_environment

__all__ = ["FLINK", "flink_home", "java_compiler"]

FLINK = "2.3.0"


def flink_home() -> Path:
    """The directory of a Flink, which is fetched when it is missing: 330 MB.

    Raises:
        subprocess.CalledProcessError: pip could not install the package, and has said why.
    """
    # Without what Flink's Python needs, which is a gigabyte: a program in Java runs without any of it.
    wanted = [f"apache-flink=={FLINK}", f"apache-flink-libraries=={FLINK}"]
    installed = f"apache_flink-{FLINK}.dist-info"
    _, packages = pip_environment(f".venv-flink-{FLINK}", installed, ["--no-deps", *wanted])
    return packages / "pyflink"


def java_compiler() -> str:
    """The Java compiler.

    Raises:
        RuntimeError: this machine has no Java compiler.
    """
    if (found := shutil.which("javac")) is None:
        raise RuntimeError("There is no javac, which compiles the job for Flink; install a JDK of Java 17")
    return found
