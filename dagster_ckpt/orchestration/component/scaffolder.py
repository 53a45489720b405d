"""What ``dg scaffold defs dagster_ckpt.CheckpointedStreamComponent NAME`` writes: YAML that loads, and its function."""

from __future__ import annotations

from keyword import iskeyword
from typing import Any

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component

from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["CheckpointedStreamScaffolder"]

_QUERY = '''\
"""The query of a checkpointed stream. The library starts it, checkpoints it, and stops it."""

from pathlib import Path

DATA = Path(__file__).resolve().parents[{depth}] / "data" / "{name}"


def {name}(context, spark):
    """Copies rows: replace source, query and sink by yours."""
    (DATA / "in").mkdir(parents=True, exist_ok=True)
    rows = spark.readStream.schema("key STRING, value LONG").json(str(DATA / "in"))
    return rows.writeStream.format("parquet").option("path", str(DATA / "out")).outputMode("append")
'''


class CheckpointedStreamScaffolder(dg.Scaffolder[Any]):
    """Writes ``defs.yaml`` and ``query.py``; refuses a name that the function cannot have."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        name = request.target_path.name.replace("-", "_")
        if not name.isidentifier() or iskeyword(name):
            raise InvalidConfiguration(
                f"{request.target_path.name!r} cannot be the name of a function in Python.",
                hint="Name it with letters, digits and underscores, and begin with a letter.",
            )
        parts = _parts(request)
        module = ".".join((*(parts[1:] if parts[0] == "src" else parts), "query"))
        data = f"{{{{ context.project_root }}}}/data/{name}"
        attributes = {
            "function": f"{module}:{name}",
            "storage": {"checkpoint_path": f"{data}/checkpoints", "savepoint_path": f"{data}/savepoints"},
            "checkpoint": {"interval": "1 min", "num_retained": 10},
            "restart": {"type": "exponential_delay"},
            "spark": {"master": "local[*]"},
        }
        scaffold_component(request, attributes)
        (request.target_path / "query.py").write_text(_QUERY.format(name=name, depth=len(parts)), encoding="utf-8")


def _parts(request: dg.ScaffoldRequest[Any]) -> tuple[str, ...]:
    """The folders from the root of the project to ``query.py``."""
    path = request.target_path.resolve()
    return path.relative_to((request.project_root or path.parent).resolve()).parts
