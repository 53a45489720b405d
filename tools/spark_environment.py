"""Environments with another Spark than the one that is installed: ``.venv-spark-4.2``, for example.

Such an environment has PySpark and takes everything else from the environment that runs this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

__all__ = ["spark_environment"]

_ROOT = Path(__file__).resolve().parent.parent


def spark_environment(release: str) -> str:
    """The Python of the environment with a release of Spark, which is made when it is missing.

    Args:
        release: major and minor number, as in ``4.2``.

    Raises:
        subprocess.CalledProcessError: pip could not install it, and has said why.
    """
    home = _ROOT / f".venv-spark-{release}"
    python = home / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    if not any(packages.glob(f"pyspark-{release}.*.dist-info")):
        print(f"Installing Spark {release} into {home.name}; the first time takes some minutes.", flush=True)
        venv.create(home, clear=True, symlinks=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, f"pyspark=={release}.*"], check=True)  # noqa: S603
    # Looked at after the environment's own packages.
    others = os.path.relpath(sysconfig.get_path("purelib"), packages)
    (packages / "others.pth").write_text(f"{others}\n", encoding="utf-8")
    return str(python)
