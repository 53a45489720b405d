"""Environments with another Spark than the one that is installed: ``.venv-spark-4.2``, for example.

Such an environment has PySpark and takes everything else from the environment that runs this.
``python -m tools.spark_environment 4.1 4.2`` makes both, side by side.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tools.pip_environment import pip_environment

__all__ = ["spark_environment", "spark_environments"]


def spark_environments(releases: Sequence[str]) -> list[str]:
    """The Python of the environment with each release of Spark; pip makes those that are missing side by side.

    Args:
        releases: as :func:`spark_environment` takes them.

    Raises:
        subprocess.CalledProcessError: pip could not install one, and has said why.
    """
    with ThreadPoolExecutor(len(releases)) as pool:
        return list(pool.map(spark_environment, releases))


def spark_environment(release: str) -> str:
    """The Python of the environment with a release of Spark, which is made when it is missing.

    Args:
        release: major and minor number, as in ``4.2``.

    Raises:
        subprocess.CalledProcessError: pip could not install it, and has said why.
    """
    installed = f"pyspark-{release}.*.dist-info"
    python, packages = pip_environment(f".venv-spark-{release}", installed, [f"pyspark=={release}.*"])
    # Looked at after the environment's own packages.
    others = os.path.relpath(sysconfig.get_path("purelib"), packages)
    (packages / "others.pth").write_text(f"{others}\n", encoding="utf-8")
    return str(python)


if __name__ == "__main__":
    spark_environments(sys.argv[1:])
