"""What a manifest tells of the job at the cut, as Spark says it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from dagster_ckpt.stored_json import SIGNED_64

__all__ = ["Facts", "Number", "Operator", "Signed", "Source"]

Signed = Annotated[int, Field(ge=-SIGNED_64 - 1, le=SIGNED_64)]
Number = Signed | Annotated[FiniteFloat, Field(ge=-1e18, le=1e18)]


class _Strict(BaseModel):
    """Nothing is converted. Members that this release does not know are kept: a newer release may have written them."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class Operator(_Strict):
    """A stateful operator: Spark's name of the operator, its partitions, and the names of its state stores."""

    id: str
    name: str
    partitions: Signed
    stores: list[str]


class Source(_Strict):
    """A source, and the JSON of its offset; ``None`` while the source has no data."""

    id: str
    offset: Any


class Facts(_Strict):
    """The facts of a cut. A fact that a manifest does not tell has the value given here.

    Attributes:
        spark_version: of the Spark that ran the query; ``None`` for a salvage, which does not know it.
        query_id: Spark's id of the query.
        batch: the last committed batch.
        planned_batch: the next batch, if it was planned already.
        watermark_ms: the watermark of the batch, milliseconds since the epoch.
        timestamp_ms: the processing time of the batch, milliseconds since the epoch.
        state_store_provider: the class that keeps the state; ``None`` for a query without state.
        state_format: the version of the state's format.
        partitions: the most partitions that an operator has.
        operators: the stateful operators.
        sources: the sources, in the order of the query.
        sql_confs: the settings that Spark fixes for the life of the query.
        accepted_loss: what was lost or doubled in this lineage with somebody's consent.
        progress: numbers of Spark's progress report nearest to the cut.
    """

    spark_version: str | None = None
    query_id: str = ""
    batch: Signed | None = None
    planned_batch: Signed | None = None
    watermark_ms: Signed | None = None
    timestamp_ms: Signed | None = None
    state_store_provider: str | None = None
    state_format: Signed | None = None
    partitions: Signed | None = None
    operators: list[Operator] = []
    sources: list[Source] = []
    sql_confs: dict[str, str] = {}
    accepted_loss: list[str] = []
    progress: dict[str, Number | str | None] = {}

    @property
    def tells_sources(self) -> bool:
        """Whether ``sources`` are all sources of the query; a manifest may leave them out."""
        return "sources" in self.model_fields_set

    def to_json(self) -> dict[str, Any]:
        """What ``_metadata`` says: all that was told, and nothing else."""
        return self.model_dump(exclude_unset=True)
