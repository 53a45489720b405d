"""What a manifest tells of the job at the cut, as Spark says it."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from dagster_ckpt.stored_json import SIGNED_64

__all__ = ["Facts", "Number", "Operator", "Signed", "Source", "StateKeys", "Topic"]

Signed = Annotated[int, Field(ge=-SIGNED_64 - 1, le=SIGNED_64)]
#: The number of a partition of Kafka, as brokers and Spark write it: Spark takes 01 and 1 for one partition.
_PARTITION = re.compile(r"^(?:0|[1-9][0-9]{0,8})$")
#: The facts that no file of Spark tells.
_OF_QUERY = frozenset({"time_zone", "state_keys", "read_sources"})
_ByPartition = dict[Annotated[str, Field(pattern=_PARTITION)], Signed]
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


class StateKeys(_Strict):
    """The columns by which an operator keeps state, as the plan of the query names them.

    Attributes:
        operator: the kind of the operator.
        columns: their names, in the order of the plan; ``None`` for a key that is computed. First those of the left
            side of a join, then those of the right one.
    """

    operator: str
    columns: list[str | None]


class Topic(_Strict):
    """A topic of Kafka that a source reads, as the brokers told it at the cut.

    Attributes:
        id: Kafka's id of the topic; a topic that is deleted and created again has another one. ``None`` if the brokers
            give no ids, as before Kafka 2.8.
        latest: the offset after the last record, by partition; empty if the brokers did not tell.
        earliest: the offset of the first record that was kept, by partition; empty if the brokers did not tell, and in
            a checkpoint of a release that did not ask.
    """

    id: str | None
    latest: _ByPartition = Field(default_factory=dict)
    earliest: _ByPartition = Field(default_factory=dict)


class Source(_Strict):
    """A source, and the JSON of its offset.

    Attributes:
        id: Spark's id of the source.
        offset: where the next batch begins; ``None`` while the source has no data.
        topics: of a Kafka source, by name.
    """

    id: str
    offset: Any
    topics: dict[str, Topic] = Field(default_factory=dict)

    @property
    def offsets(self) -> dict[str, dict[str, int]] | None:
        """The offset of the next record by topic and partition, ``None`` for an offset that is not Kafka's."""
        told = self.offset
        if not isinstance(told, dict) or not told:
            return None
        for partitions in told.values():
            if not isinstance(partitions, dict) or not partitions:
                return None
            if any(_PARTITION.fullmatch(name) is None or type(at) is not int for name, at in partitions.items()):
                return None
        return told

    @property
    def lag(self) -> dict[str, dict[str, int]]:
        """How many offsets of each topic and partition were yet to be read at the cut, where the brokers told."""
        found: dict[str, dict[str, int]] = {}
        for topic in self.offsets or {}:
            latest = self.topics[topic].latest if topic in self.topics else {}
            for partition, end in latest.items():
                found.setdefault(topic, {})[partition] = max(end - self.reached(topic, partition), 0)
        return found

    def reached(self, topic: str, partition: str) -> int:
        """The offset of the next record of a partition; 0 where none was read."""
        return (self.offsets or {}).get(topic, {}).get(partition, 0)


class Facts(_Strict):
    """The facts of a cut. A fact that a manifest does not tell has the value given here.

    Attributes:
        spark_version: of the Spark that ran the query; ``None`` where a release did not record it.
        time_zone: of the query's session, in which Spark tells days and hours; ``None`` where it is not recorded.
        query_id: Spark's id of the query.
        batch: the last committed batch.
        planned_batch: the next batch, if it was planned already.
        watermark_ms: the watermark of the batch, milliseconds since the epoch.
        timestamp_ms: the processing time of the batch, milliseconds since the epoch.
        state_store_provider: the class that keeps the state; ``None`` for a query without state.
        state_format: the version of the state's format.
        commit_log: the version of the format of Spark's commit log.
        partitions: the most partitions that an operator has.
        operators: the stateful operators.
        state_keys: by what each stateful operator of the query's plan keeps state, in the order of the plan; ``None``
            where it is not recorded.
        sources: the sources, in the order of the query.
        read_sources: of a query that names its sources, the names of all that have been read since the job began, also
            of those that the query has left out since; ``None`` where it is not recorded.
        sql_confs: the settings that Spark fixes for the life of the query.
        accepted_loss: what was lost or doubled in this lineage with somebody's consent.
        start_sources: of a checkpoint of kind ``moved``: the request that moved its sources.
        progress: numbers of Spark's progress report nearest to the cut.
    """

    spark_version: str | None = None
    time_zone: str | None = None
    query_id: str = ""
    batch: Signed | None = None
    planned_batch: Signed | None = None
    watermark_ms: Signed | None = None
    timestamp_ms: Signed | None = None
    state_store_provider: str | None = None
    state_format: Signed | None = None
    commit_log: Signed | None = None
    partitions: Signed | None = None
    # Factories, because pydantic copies a value that can change deeply for each manifest.
    operators: list[Operator] = Field(default_factory=list)
    state_keys: list[StateKeys] | None = None
    sources: list[Source] = Field(default_factory=list)
    read_sources: list[str] | None = None
    sql_confs: dict[str, str] = Field(default_factory=dict)
    accepted_loss: list[str] = Field(default_factory=list)
    start_sources: str | None = None
    progress: dict[str, Number | str | None] = Field(default_factory=dict)

    @property
    def tells_sources(self) -> bool:
        """Whether ``sources`` are all sources of the query; a manifest may leave them out."""
        return "sources" in self.model_fields_set

    @property
    def of_query(self) -> Facts:
        """What the session and the plan of the query tell, and no file of Spark."""
        return Facts.model_validate(self.model_dump(include=set(_OF_QUERY), exclude_unset=True))

    def and_of_query(self, query: Facts) -> Facts:
        """These facts, with those of ``query`` that no file of Spark tells."""
        return self.model_copy(update={name: getattr(query, name) for name in _OF_QUERY & query.model_fields_set})

    def to_json(self) -> dict[str, Any]:
        """What ``_metadata`` says: all that was told, and nothing else."""
        return self.model_dump(exclude_unset=True)
