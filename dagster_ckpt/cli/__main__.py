"""``python -m dagster_ckpt.cli``."""

from __future__ import annotations

from dagster_ckpt.cli import main

main()
