"""Links into the Launchpad of ``<job>_rollback``, filled in: a click there launches the run, and nothing is typed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import dagster as dg

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.config import LATEST, NONE
from dagster_ckpt.orchestration.names import rollback_job

__all__ = ["Launchpad"]

_DEFAULT_REPOSITORY = "__repository__"
#: Retained checkpoints that the newest one's event has links for; 0.2 kB each in Dagster's database.
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Launchpad:
    """The Launchpad of one job's rollback job.

    Attributes:
        code_location: as the paths of the Dagster UI name it.
        job_name: the checkpointed job.
    """

    code_location: str
    job_name: str

    @classmethod
    def of_run(cls, run: dg.DagsterRun | None, job_name: str) -> Self | None:
        """The Launchpad in the code location of a run of the job; ``None`` for a run that no UI has launched."""
        origin = None if run is None else run.remote_job_origin
        if origin is None:
            return None
        repository = origin.repository_origin
        location = repository.code_location_origin.location_name
        named = repository.repository_name != _DEFAULT_REPOSITORY
        return cls(f"{repository.repository_name}@{location}" if named else location, job_name)

    def link(self, words: str, to: str, **others: Any) -> str:
        """A link in Markdown that opens the Launchpad.

        Args:
            words: of the link.
            to: where the job goes back to.
            others: more of the rollback's configuration.
        """
        config = "\n".join(f"{key}: {json.dumps(value)}" for key, value in {"to": to, **others}.items())
        path = f"/locations/{quote(self.code_location, safe='@')}/jobs/{rollback_job(self.job_name)}/playground/setup"
        return f"[{words}]({path}?config={quote(config, safe='')})"

    def ways_back(self, to: str, name: str) -> dg.MarkdownMetadataValue:
        """How to go back to a checkpoint or savepoint, in words that are links.

        Args:
            to: its pointer.
            name: as people read it.
        """
        ways = [
            self.link(f"go back to {name}", to),
            self.link("check only whether that is possible", to, check_only=True),
            self.link("restart from the newest checkpoint", LATEST),
            self.link("start from nothing", NONE),
        ]
        # One below the other: a table is as wide as its longest path, and the end of a long line is out of sight.
        return dg.MetadataValue.md("\n".join(["Click one, then Launch Run:", "", *(f"- {way}" for way in ways)]))

    def newest_first(self, retained: Sequence[CheckpointMetadata]) -> dg.MarkdownMetadataValue:
        """The newest retained checkpoints as links that go back, the newest on top.

        Dagster lists partitions in the order of their creation, with the oldest on top, whatever their keys are.

        Args:
            retained: the oldest first.
        """
        listed = [
            f"- {self.link(item.name, item.reference)}: batch {item.batch}, {item.written_at[:19]}Z"
            for item in reversed(retained[-_MOST_LISTED:])
        ]
        return dg.MetadataValue.md("\n".join(["Click one, then Launch Run:", "", *listed]))
