"""Runs a program of a user's in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]


def run_program(program: str, root: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """What a program has printed last, as JSON; ``root`` is its first argument and its temporary directory."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(root), *arguments],
        cwd=_ROOT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(root), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
