"""Environments of their own below the project, made with pip when they are missing."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

__all__ = ["pip_environment"]

_ROOT = Path(__file__).resolve().parent.parent


def pip_environment(name: str, installed: str, arguments: list[str]) -> tuple[Path, Path]:
    """The Python of an environment and its packages.

    Args:
        name: of the directory.
        installed: the pattern of a ``dist-info`` of the packages; without one the environment is made anew.
        arguments: of ``pip install``.

    Raises:
        subprocess.CalledProcessError: pip could not install the packages, and has said why.
    """
    home = _ROOT / name
    python = home / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    if not any(packages.glob(installed)):
        print(f"Installing {' '.join(arguments)} into {name}; the first time takes some minutes.", flush=True)
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
        subprocess.run([*pip, *arguments], check=True)  # noqa: S603
    return python, packages
