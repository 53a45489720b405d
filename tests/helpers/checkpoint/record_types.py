"""Which records there are: found in the package, so that a new kind is noticed."""

from __future__ import annotations

import importlib
import re
from dataclasses import is_dataclass
from pathlib import Path

import dagster_ckpt
from dagster_ckpt.checkpoint.control.failures import Streak
from dagster_ckpt.checkpoint.control.heartbeat import Completed, FailedCheckpoints
from dagster_ckpt.checkpoint.control.quarantine import FellBack
from dagster_ckpt.checkpoint.control.savepoint_requests import Asked, TakenSavepoint
from dagster_ckpt.checkpoint.control.taken_savepoints import Label
from dagster_ckpt.checkpoint.format.code_versions import CodeVersion, Upgrade
from dagster_ckpt.checkpoint.start_traces import Step
from dagster_ckpt.checkpoint.submissions import LatestSubmission
from dagster_ckpt.checkpoint.taking.progress import CheckpointInProgress
from dagster_ckpt.checkpoint.taking.savepoint_files import _Claimed, _Disposal

#: Records beside a savepoint, not among the records of a job.
IN_A_SAVEPOINT = frozenset({_Claimed, _Disposal})
#: Part of a record, or never written.
_OTHERS = frozenset(
    {
        Streak,
        CheckpointInProgress,
        Completed,
        FailedCheckpoints,
        FellBack,
        Step,
        TakenSavepoint,
        Asked,
        Label,
        CodeVersion,
        Upgrade,
        LatestSubmission,
    }
)


_IMPORTS = re.compile(r"import (\([^)]*|.*)\b(read_record|record_in)\b")


def record_types() -> frozenset[type]:
    """Every dataclass of its folder that a module which reads records knows, without those that are no record."""
    root = Path(dagster_ckpt.__file__).parent
    found: set[type] = set()
    for path in root.rglob("*.py"):
        imports = _IMPORTS.search(path.read_text(encoding="utf-8"))
        if imports is not None and path.name != "__init__.py":
            name = ".".join(("dagster_ckpt", *path.relative_to(root).with_suffix("").parts))
            members = [kind for kind in vars(importlib.import_module(name)).values() if isinstance(kind, type)]
            found |= {kind for kind in members if is_dataclass(kind) and _folder(kind.__module__) == _folder(name)}
    return frozenset(found - _OTHERS)


def _folder(module: str) -> str:
    return module.rpartition(".")[0]
