"""What ``recovery.py`` has measured so far, on disk after each case."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.failures.case import STAGES, Case, summarize

__all__ = ["Results"]

#: How often a kind of failure is begun, when a case of it fails.
_TRIES = 3


class Results:
    """Cases by kind, and what went wrong between them.

    Args:
        output: the report, written after each case.
        parameters: of this run, for the report.
        known: the report of an earlier run, whose cases are not done again.
    """

    def __init__(self, output: Path, parameters: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> None:
        self._output = output
        self._parameters = parameters
        self.cases = {kind: [Case(**case) for case in cases] for kind, cases in (known or {}).get("cases", {}).items()}
        #: The errors of the cases that failed, after the name of their kind.
        self.failed: list[str] = list((known or {}).get("failed", []))

    def add(self, kind: str, found: Case) -> None:
        """Keep a case, print it, and write the report."""
        self.cases.setdefault(kind, []).append(found)
        stages = "  ".join(f"{stage} {seconds:.2f}" for stage, seconds in found.stages.items())
        number, at = len(self.cases[kind]), time.strftime("%H:%M:%S")
        print(f"{number:>4}  {stages}  total {found.total:.2f} s  (load {found.load}, {at})", flush=True)
        self._write()

    def take(self, kind: str, what: str, wanted: int, run: Callable[[int, int], None]) -> None:
        """Have so many cases of a kind; one that fails is kept as an error, and the kind is begun once more.

        Args:
            kind: its name in the report.
            what: it is, for people.
            wanted: number of cases.
            run: gets the number of the try and how many cases are missing, and adds them.
        """
        for tried in range(_TRIES):
            if (missing := wanted - len(self.cases.get(kind, ()))) <= 0:
                return
            print(what, flush=True)
            try:
                run(tried, missing)
            except Exception as error:  # the other kinds, and the cases that are there, are hours of work
                traceback.print_exc()
                self.failed.append(f"{kind}: {error}")
                self._write()

    def report(self) -> dict[str, Any]:
        """All of it, with the medians."""
        return {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
            "parameters": dict(self._parameters),
            "failed": self.failed,
            "ratios": {
                kind: self._ratios(kind) for kind in ("archive", "standby") if {kind, f"no {kind}"} <= self.cases.keys()
            },
            "summary": {kind: summarize(cases) for kind, cases in self.cases.items()},
            "cases": {kind: [asdict(case) for case in cases] for kind, cases in self.cases.items()},
        }

    def _ratios(self, kind: str) -> dict[str, float]:
        """Of the pairs: the median ratio, with to without something, of processor time and of each stage."""
        # The second of a pair is added after the first.
        pairs = list(zip(self.cases[kind], self.cases[f"no {kind}"], strict=False))
        ratios = {"cpu": [one.cpu / other.cpu for one, other in pairs if one.cpu and other.cpu]}
        ratios["total"] = [one.total / other.total for one, other in pairs]
        for stage in STAGES:
            ratios[stage] = [one.stages[stage] / other.stages[stage] for one, other in pairs if other.stages[stage]]
        return {name: round(statistics.median(values), 3) for name, values in ratios.items() if values}

    def _write(self) -> None:
        self._output.parent.mkdir(parents=True, exist_ok=True)
        self._output.write_text(json.dumps(self.report(), indent=2) + "\n", encoding="utf-8")
