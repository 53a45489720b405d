"""The Kafka sources of a query over one start: their topics' ids, and how far the brokers are ahead."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from dagster_ckpt.checkpoint import Source, Topic
from dagster_ckpt.clock import Clock
from dagster_ckpt.errors import TopicRecreated
from dagster_ckpt.spark.kafka.brokers import Brokers, BrokersAway, TopicState
from dagster_ckpt.spark.query import QuerySource, listed_sources

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["KafkaInputs", "parse_topics", "with_earlier_topics"]

_log = logging.getLogger(__name__)

_SOURCES = TypeAdapter(list[Source])

#: Seconds that the brokers may take to answer before a start, and during a capture.
_PATIENCE, _CAPTURING = 10.0, 2.0
#: Seconds for which brokers must say that a topic is gone, because a broker that starts may not know the topic yet; and
#: seconds between two questions.
_GONE, _AGAIN = 3.0, 0.5
#: Seconds without another question after the brokers gave no answer.
_PAUSE = 60.0


class KafkaInputs:
    """The Kafka sources of a query.

    The first id of a topic that a start learns is the id of the topic that the start reads. A running query whose topic
    has another id now reads a topic that was deleted and created again.

    Args:
        writer: the query.
        clock: monotonic time.
    """

    def __init__(self, writer: DataStreamWriter, clock: Clock) -> None:
        sources = [source for source in listed_sources(writer) if source.format == "kafka"]
        self._sources: dict[str, QuerySource] = {source.id: source for source in sources}
        jvm = writer._spark._jvm  # noqa: SLF001 - PySpark's writer has no getter for it
        self._brokers = {name: Brokers(jvm, source.options) for name, source in self._sources.items()}
        self._clock = clock
        self._silent_until = float("-inf")
        self._ids: dict[tuple[str, str], str] = {}

    def reads(self, source: str, topic: str) -> bool:
        """Whether a source names a topic, or has a pattern that matches its name.

        Raises:
            BrokersAway: Java cannot read the pattern.
        """
        named = self._named(source)
        if named is not None:
            return topic in named
        pattern = self.option(source, "subscribePattern")
        return pattern is not None and self._brokers[source].matches(pattern, topic)

    def subscribed(self, source: str) -> set[str]:
        """The topics that a source names, or those that there are now whose names match its pattern.

        Raises:
            BrokersAway: the brokers did not answer, or may not be asked.
        """
        named = self._named(source)
        if named is not None:
            return set(named)
        return {name for name in self._brokers[source].names(_PATIENCE) if self.reads(source, name)}

    @property
    def ids(self) -> Collection[str]:
        """Spark's ids of the sources."""
        return self._sources.keys()

    def alike(self, source: str) -> list[str]:
        """The ids of the sources that equal a source: Spark may run them all as one."""
        return [id_ for id_, other in self._sources.items() if other.same_as == self._sources[source].same_as]

    def option(self, source: str, name: str) -> str | None:
        """An option of a source."""
        return self._sources[source].option(name)

    def look(self, source: str, topics: Collection[str]) -> Mapping[str, TopicState | None]:
        """The topics of a source now; ``None`` for one that does not exist.

        Raises:
            BrokersAway: the brokers did not answer, or may not be asked.
        """
        sure, pause = self._clock.monotonic() + _GONE, threading.Event()
        while True:
            now = self._ask(source, topics, _PATIENCE)
            if all(now.values()) or self._clock.monotonic() >= sure:
                return self._with_compaction(source, now)
            pause.wait(_AGAIN)

    def at(self, source: str, topic: str, partitions: Collection[str], milliseconds: int) -> Mapping[str, int | None]:
        """The first offset of each partition since a moment, in milliseconds of the epoch; ``None`` if all are older.

        Raises:
            BrokersAway: the brokers did not answer, or may not be asked.
        """
        return self._brokers[source].at(topic, partitions, milliseconds, _PATIENCE)

    def begin_with(self, source: str, topics: Mapping[str, TopicState | Topic | None]) -> None:
        """The start reads these topics, by name."""
        self._ids.update({(source, name): topic.id for name, topic in topics.items() if topic and topic.id})

    def begin_anew(self) -> None:
        """The start reads the topics that there are now, as far as the brokers tell."""
        for source in self._sources:
            with suppress(BrokersAway):
                names = self.subscribed(source)
                self.begin_with(source, self._ask(source, names, _PATIENCE, with_earliest=False))

    def noted(self) -> bytes:
        """The ids of the topics that the start reads, for :func:`parse_topics`; empty if the brokers told none."""
        topics: dict[str, dict[str, Topic]] = {}
        for (source, name), id_ in self._ids.items():
            topics.setdefault(source, {})[name] = Topic(id=id_)
        sources = [Source(id=source, offset=None, topics=known) for source, known in topics.items()]
        return _SOURCES.dump_json(sources, exclude_defaults=True) if sources else b""

    def observed(self, sources: Sequence[Source]) -> list[Source]:
        """The sources of a cut, with what their brokers tell of their topics; it never raises because brokers are away.

        Raises:
            TopicRecreated: a topic was deleted and created again since the query started.
        """
        return [
            self._observed(source) if source.id in self._sources and source.offsets else source for source in sources
        ]

    def close(self) -> None:
        """End the clients; the next question opens other ones."""
        for brokers in self._brokers.values():
            with suppress(Exception):  # the JVM may be gone
                brokers.close()

    def _named(self, source: str) -> Collection[str] | None:
        """The topics that a source names, ``None`` if it reads all whose names match a pattern."""
        if (listed := self.option(source, "subscribe")) is not None:
            return {name.strip() for name in listed.split(",") if name.strip()}
        return self._assigned(source).keys() or None

    def _ask(
        self, source: str, topics: Collection[str], seconds: float, *, with_earliest: bool = True
    ) -> Mapping[str, TopicState | None]:
        """The topics, each with those of its partitions that the source reads."""
        assigned = self._assigned(source)
        now = self._brokers[source].topics(topics, seconds, with_earliest=with_earliest)
        return {name: state and state.only(assigned.get(name)) for name, state in now.items()}

    def _with_compaction(self, source: str, topics: Mapping[str, TopicState | None]) -> Mapping[str, TopicState | None]:
        """The topics, with what compaction may have removed. Brokers may not let everybody read a topic's settings."""
        there = {name: state for name, state in topics.items() if state is not None}
        compacted: dict[str, Mapping[str, int] | None] = dict.fromkeys(there)
        try:
            lags = self._brokers[source].compaction_lags(there, _PATIENCE) if there else {}
            for name, state in there.items():
                compacted[name] = self._compacted(source, name, state.latest, lags[name]) if name in lags else {}
        except BrokersAway as error:
            _log.warning("Whether the topics of source %s are compacted is not known: %s", source, error)
        return {name: state and replace(state, compacted=compacted[name]) for name, state in topics.items()}

    def _compacted(self, source: str, topic: str, latest: Mapping[str, int], lag: int) -> Mapping[str, int]:
        """Where the records of a topic begin that are too young to be removed, by partition."""
        if lag <= 0:
            return latest
        young = self.at(source, topic, latest.keys(), int(self._clock.time() * 1000) - lag)
        return {number: end if (first := young.get(number)) is None else first for number, end in latest.items()}

    def _assigned(self, source: str) -> Mapping[str, Collection[int]]:
        """The partitions that a source names, by topic; empty if it names none."""
        with suppress(ValueError):
            named = json.loads(self.option(source, "assign") or "{}")
            if isinstance(named, dict) and all(isinstance(numbers, list) for numbers in named.values()):
                return named
        return {}  # Spark refuses it

    def _observed(self, source: Source) -> Source:
        names = list(source.offsets or {})
        now: Mapping[str, TopicState | None] = {}
        if self._clock.monotonic() >= self._silent_until:
            try:
                now = self._ask(source.id, names, _CAPTURING)
            except BrokersAway as error:
                self._silent_until = self._clock.monotonic() + _PAUSE
                _log.warning("This checkpoint does not tell how far its source is behind: %s", error)
        topics = {}
        for name in names:
            state = now.get(name)
            told = None if state is None else state.id
            id_ = self._ids.get((source.id, name)) if told is None else self._ids.setdefault((source.id, name), told)
            if told not in (None, id_):
                raise TopicRecreated(
                    f"Topic {name} was deleted and created again while the query read it: its id was {id_} and is "
                    f"{told} now.",
                    hint="Launch the job again: the check before the restore tells how many records are lost.",
                )
            if id_ is not None or state is not None:
                ends = {} if state is None else {"latest": dict(state.latest), "earliest": dict(state.earliest)}
                topics[name] = Topic(id=id_, **ends)
        return source.model_copy(update={"topics": topics}) if topics else source


def parse_topics(noted: bytes) -> list[Source]:
    """What :meth:`KafkaInputs.noted` told, as sources of an earlier cut.

    Raises:
        ValueError: it is damaged.
    """
    return _SOURCES.validate_json(noted)


def with_earlier_topics(sources: Sequence[Source], earlier: Sequence[Source]) -> list[Source]:
    """The sources of a cut that no broker was asked about, with the topics' ids of earlier cuts of the same query.

    Of a source that is in ``earlier`` twice, the last one counts.
    """
    known: dict[str, dict[str, Topic]] = {}
    for source in earlier:
        known.setdefault(source.id, {}).update({name: Topic(id=topic.id) for name, topic in source.topics.items()})
    return [
        source.model_copy(update={"topics": topics}) if (topics := known.get(source.id)) else source
        for source in sources
    ]
