"""Topics as their brokers tell them, asked by the client that Spark's Kafka connector brings into the JVM."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from dagster_ckpt.shown_text import in_one_line, redacted

__all__ = ["Brokers", "BrokersAway", "TopicState"]

_ADMIN = "org.apache.kafka.clients.admin"
#: The options of a source that are its client's own begin so, in upper or lower case.
_OWN = "kafka."
_UNKNOWN = "UnknownTopicOrPartitionException"
#: Stands for an id where brokers give none.
_ZERO = "AAAAAAAAAAAAAAAAAAAAAA"
#: Milliseconds that a client may take to close.
_CLOSING = 1000

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic now.

    Attributes:
        id: Kafka's id of the topic; a topic that is deleted and created again has another one. ``None`` if the brokers
            give no ids, as before Kafka 2.8.
        earliest: the offset of the first record that is kept, by partition; empty if it was not asked for.
        latest: the offset after the last record, by partition.
        compacted: the offset before which compaction may have removed records, by partition; empty for a topic that is
            not compacted. ``None`` if the brokers do not tell.
    """

    id: str | None
    earliest: Mapping[str, int]
    latest: Mapping[str, int]
    compacted: Mapping[str, int] | None = field(default_factory=dict)

    def only(self, partitions: Collection[int] | None) -> TopicState:
        """The topic with some of its partitions; ``None`` keeps them all."""
        if partitions is None:
            return self
        kept = {str(number) for number in partitions}
        earliest, latest = (
            {number: offset for number, offset in offsets.items() if number in kept}
            for offsets in (self.earliest, self.latest)
        )
        return replace(self, earliest=earliest, latest=latest)


class BrokersAway(Exception):
    """The brokers gave no answer in time, or refused one; the text says who and why."""


class Brokers:
    """The brokers of one source.

    Args:
        jvm: of a session whose class path has Spark's Kafka connector.
        options: the options of the source.
    """

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        self._jvm = jvm
        own = {name[len(_OWN) :]: value for name, value in options.items() if name.lower().startswith(_OWN)}
        self._settings = {name.lower(): value for name, value in own.items()}
        self._client: Any = None

    @property
    def shown(self) -> str:
        """The addresses, for people."""
        return in_one_line(redacted(self._settings.get("bootstrap.servers", "no address")))

    def names(self, seconds: float) -> list[str]:
        """The names of all topics but Kafka's own.

        Args:
            seconds: how long the brokers may take to answer.

        Raises:
            BrokersAway: the brokers did not answer, or may not be asked.
        """
        give_up = time.monotonic() + seconds
        client = self._open(seconds)
        asked = self._call(lambda: client.listTopics().names())
        told = self._answer(asked, give_up)
        return self._call(lambda: sorted(map(str, told)))

    def matches(self, pattern: str, topic: str) -> bool:
        """Whether a pattern of Java's is found in the name of a topic, as Spark looks for it.

        Raises:
            BrokersAway: Java cannot read the pattern.
        """
        return self._call(lambda: bool(self._jvm.java.util.regex.Pattern.compile(pattern).matcher(topic).find()))

    def topics(
        self, names: Collection[str], seconds: float, *, with_earliest: bool = True
    ) -> dict[str, TopicState | None]:
        """The topics with these names; ``None`` for one that does not exist.

        Args:
            names: of topics.
            seconds: how long the brokers may take to answer.
            with_earliest: whether to ask for the first records that are kept.

        Raises:
            BrokersAway: the brokers did not answer, or may not be asked.
        """
        give_up = time.monotonic() + seconds
        client = self._open(seconds)
        described = self._call(lambda: dict(client.describeTopics(self._list(names)).topicNameValues()))
        ids: dict[str, str | None] = {}
        partitions: dict[str, list[str]] = {}
        for name, answer in described.items():
            try:
                topic = self._answer(answer, give_up)
            except BrokersAway as error:
                if _UNKNOWN in str(error):
                    continue
                raise
            ids[name], partitions[name] = self._call(partial(_described, topic))
        asked = ("latest", "earliest") if with_earliest else ("latest",)
        ends = [self._offsets(client, partitions, which) for which in asked]
        latest, earliest, *_ = [*(self._by_topic(self._answer(answer, give_up)) for answer in ends), {}]
        return {
            name: TopicState(ids[name], earliest.get(name, {}), latest.get(name, {})) if name in ids else None
            for name in names
        }

    def at(self, topic: str, partitions: Collection[str], milliseconds: int, seconds: float) -> dict[str, int | None]:
        """The offset of the first record of each partition that is as old as a moment or younger.

        Args:
            topic: its name.
            partitions: their numbers.
            milliseconds: the moment, since the epoch.
            seconds: how long the brokers may take to answer.

        Returns:
            the offset by partition; ``None`` where all records are older.

        Raises:
            BrokersAway: the brokers did not answer, or may not be asked.
        """
        give_up = time.monotonic() + seconds
        asked = self._offsets(self._open(seconds), {topic: partitions}, "forTimestamp", milliseconds)
        found = self._by_topic(self._answer(asked, give_up)).get(topic, {})
        return {number: offset if offset >= 0 else None for number, offset in found.items()}

    def compaction_lags(self, names: Collection[str], seconds: float) -> dict[str, int]:
        """For each of these topics that is compacted, the milliseconds for which its records are surely kept.

        Args:
            names: of topics.
            seconds: how long the brokers may take to answer.

        Raises:
            BrokersAway: the brokers did not answer, or may not be asked.
        """
        give_up = time.monotonic() + seconds
        client = self._open(seconds)

        def ask() -> Any:
            resource = getattr(self._jvm, "org.apache.kafka.common.config.ConfigResource")
            topic = getattr(self._jvm, "org.apache.kafka.common.config.ConfigResource$Type").TOPIC
            return client.describeConfigs(self._list([resource(topic, name) for name in names])).all()

        described = self._answer(self._call(ask), give_up)

        def read() -> dict[str, int]:
            found: dict[str, int] = {}
            for resource, config in described.items():
                policy, lag = config.get("cleanup.policy"), config.get("min.compaction.lag.ms")
                if policy is None:
                    raise ValueError(f"no cleanup.policy of topic {resource.name()} was told")
                if "compact" in str(policy.value()):
                    found[str(resource.name())] = 0 if lag is None else int(lag.value())
            return found

        return self._call(read)

    def close(self) -> None:
        """End the client; the next question opens another one."""
        client, self._client = self._client, None
        if client is not None:
            self._call(lambda: client.close(self._jvm.java.time.Duration.ofMillis(_CLOSING)))

    def _open(self, seconds: float) -> Any:
        if self._client is None:
            patience = str(int(seconds * 1000))
            settings = {**self._settings, "default.api.timeout.ms": patience, "request.timeout.ms": patience}

            def create() -> Any:
                thread = self._jvm.java.lang.Thread.currentThread()
                thread.getContextClassLoader().loadClass(f"{_ADMIN}.AdminClient")  # or a clear error
                return getattr(self._jvm, f"{_ADMIN}.AdminClient").create(self._map(settings))

            self._client = self._call(create)
        return self._client

    def _offsets(self, client: Any, partitions: Mapping[str, Collection[str]], which: str, *given: int) -> Any:
        def ask() -> Any:
            partition = getattr(self._jvm, "org.apache.kafka.common.TopicPartition")
            spec = getattr(getattr(self._jvm, f"{_ADMIN}.OffsetSpec"), which)(*given)
            wanted = {partition(name, int(number)): spec for name, numbers in partitions.items() for number in numbers}
            level = self._settings.get("isolation.level", "read_uncommitted").upper()
            isolation = getattr(self._jvm, "org.apache.kafka.common.IsolationLevel").valueOf(level)
            options = getattr(self._jvm, f"{_ADMIN}.ListOffsetsOptions")(isolation)
            return client.listOffsets(self._map(wanted), options).all()

        return self._call(ask)

    def _answer(self, answer: Any, give_up: float) -> Any:
        left = max(int((give_up - time.monotonic()) * 1000), 1)
        return self._call(lambda: answer.get(left, self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS))

    def _by_topic(self, offsets: Any) -> dict[str, dict[str, int]]:
        def read() -> dict[str, dict[str, int]]:
            found: dict[str, dict[str, int]] = {}
            for partition, end in offsets.items():
                found.setdefault(str(partition.topic()), {})[str(partition.partition())] = int(end.offset())
            return found

        return self._call(read)

    def _call(self, call: Callable[[], _Value]) -> _Value:
        from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - PySpark is loaded where it runs
        from pyspark.errors import PySparkException  # noqa: PLC0415

        try:
            return call()
        except Py4JJavaError as error:
            raise BrokersAway(f"{self.shown}: {_innermost(error.java_exception)}") from error
        # PySpark translates what Java says of a wrong option. A client may lack a method, or the JVM be gone.
        except (PySparkException, Py4JError, TypeError, ValueError) as error:
            raise BrokersAway(f"{self.shown}: {in_one_line(redacted(str(error)))}") from error

    def _list(self, items: Collection[Any]) -> Any:
        made = self._jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return made

    def _map(self, items: Mapping[Any, Any]) -> Any:
        made = self._jvm.java.util.HashMap()
        for name, value in items.items():
            made.put(name, value)
        return made


def _described(topic: Any) -> tuple[str | None, list[str]]:
    """The id of a topic, and the numbers of its partitions."""
    id_ = str(topic.topicId())
    return None if id_ == _ZERO else id_, [str(partition.partition()) for partition in topic.partitions()]


def _innermost(error: Any) -> str:
    """The first cause of an error, with its class."""
    while (cause := error.getCause()) is not None:
        error = cause
    return in_one_line(redacted(f"{error.getClass().getSimpleName()}: {error.getMessage()}"))
