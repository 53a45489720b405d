"""A broker of Kafka on this machine, without ZooKeeper (KRaft), from Maven's jars. Needs ``confluent-kafka``."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark import __version__ as _spark

from dagster_ckpt.testing.maven import Artifact, beside_spark, classpath

__all__ = ["CONNECTOR", "PASSWORD", "KafkaServer", "connector", "running"]

_KAFKA: Artifact = ("org.apache.kafka", "kafka_2.13", "4.1.1")
#: Spark's connector in Maven's repository, by the release of Spark: patch releases that have all they need there.
#: Spark 4.3 has no connector yet, and takes that of Spark 4.2.
_CONNECTORS = {"4.0": "4.0.0", "4.1": "4.1.1"}
_NEWEST = "4.2.0"
_CONNECTOR: Artifact = (
    "org.apache.spark",
    "spark-sql-kafka-0-10_2.13",
    _CONNECTORS.get(_spark.rpartition(".")[0], _NEWEST),
)
CONNECTOR = ":".join(_CONNECTOR)
#: Runs a program until this process closes the pipe that is the program's standard input, or is gone.
_UNTIL_CLOSED = ("sh", "-c", 'exec 3<&0 </dev/null; { read -r _ <&3; kill -9 $$; } & exec "$@" 3<&-', "sh")
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PATIENCE = 300.0
#: Below those that Linux gives to whoever asks for any.
_LOWEST_PORT, _HIGHEST_PORT = 20_000, 32_000
_MODULE, _USER = "org.apache.kafka.common.security.plain.PlainLoginModule", "reader"
#: What the user of the guarded address says.
PASSWORD = "only-the-brokers-know"  # noqa: S105 - of a broker of this machine
_SETTINGS = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{guarded},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={module} required user_{user}="{password}";
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={home}/data
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
"""


class KafkaServer:
    """A broker that is its own controller.

    Args:
        home: a directory for its files.
        jars: its class path.
    """

    def __init__(self, home: Path, jars: str) -> None:
        self._home = home
        self._jars = jars
        port, guarded, controller = _free_ports(3)
        self.address, self.guarded = f"127.0.0.1:{port}", f"127.0.0.1:{guarded}"
        self._settings = home / "server.properties"
        ports = {"port": port, "guarded": guarded, "controller": controller}
        login = {"module": _MODULE, "user": _USER, "password": PASSWORD}
        self._settings.write_text(_SETTINGS.format(home=home, **ports, **login), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self._quiet: dict[str, Any] = {"bootstrap.servers": self.address, "log_level": 0}
        self._admin = AdminClient(self._quiet)

    def start(self) -> None:
        """Start the broker, and wait until it answers."""
        with (self._home / "log").open("ab") as log:
            if not (self._home / "data").exists():
                format_ = self._java("kafka.tools.StorageTool", "format", "-t", _id(), "-c")
                subprocess.run(format_, stdout=log, stderr=subprocess.STDOUT, check=True)
            self._process = subprocess.Popen(
                [*_UNTIL_CLOSED, *self._java("kafka.Kafka")],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        give_up, pause = time.monotonic() + _PATIENCE, threading.Event()
        while True:
            try:
                AdminClient(self._quiet).list_topics(timeout=1)
                return
            except KafkaException:
                assert self._process.poll() is None, (self._home / "log").read_text()
                assert time.monotonic() < give_up, (self._home / "log").read_text()
                pause.wait(0.1)

    def stop(self) -> None:
        """Stop the broker as a crash would; so does the end of this process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def login(self, password: str) -> dict[str, str]:
        """Options with which Spark logs in."""
        return {
            "kafka.bootstrap.servers": self.guarded,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{_MODULE} required username="{_USER}" password="{password}";',
        }

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic, also right after another of this name was deleted."""
        give_up, pause = time.monotonic() + _PATIENCE, threading.Event()
        while True:
            try:
                _done(self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)]))
                return
            except KafkaException:
                assert time.monotonic() < give_up
                pause.wait(0.1)

    def delete(self, topic: str) -> None:
        _done(self._admin.delete_topics([topic]))

    def recreate(self, topic: str, partitions: int = 1) -> None:
        self.delete(topic)
        self.create(topic, partitions)

    def widen(self, topic: str, partitions: int) -> None:
        _done(self._admin.create_partitions([NewPartitions(topic, partitions)]))

    def expire(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records before an offset of each partition, as retention does."""
        ends = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        _done(self._admin.delete_records(ends))

    def send(self, topic: str, values: Iterable[str], partition: int = 0, key: str | None = None) -> None:
        producer = Producer({**self._quiet, "linger.ms": 0})  # an older one may not know a new partition
        for value in values:
            producer.produce(topic, value.encode(), key, partition)
        assert producer.flush(_PATIENCE) == 0

    def records(self, topic: str) -> Iterator[Message]:
        """All records of a topic as a consumer gets them, from their beginning to the ends of the partitions."""
        consumer = Consumer({**self._quiet, **_FROM_THE_BEGINNING, "group.id": uuid.uuid4().hex})
        consumer.subscribe([topic])
        unread = set(self._admin.list_topics(topic, _PATIENCE).topics[topic].partitions)
        while unread:
            message = consumer.poll(_PATIENCE)
            assert message is not None, f"no record and no end of {topic}"
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client has no other name for it
                unread.discard(message.partition())
        consumer.close()

    def _java(self, *arguments: str) -> list[str]:
        return ["java", *_JAVA, "-cp", self._jars, *arguments, str(self._settings)]


_FROM_THE_BEGINNING = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "enable.partition.eof": True}


@contextmanager
def running(scratch: Path) -> Iterator[KafkaServer]:
    """A new broker, which is gone afterwards with all it kept.

    Args:
        scratch: an empty directory.
    """
    assert shutil.which("java"), "java is missing; see tools/require-java"
    server = KafkaServer(scratch, classpath(scratch, *_KAFKA))
    try:
        server.start()
        yield server
    finally:
        server.stop()


def connector(scratch: Path) -> list[Path]:
    """The jars of Spark's connector that Spark itself does not have."""
    return beside_spark(scratch, _CONNECTOR)


def _done(answers: Mapping[Any, Future[Any]]) -> None:
    for answer in answers.values():
        answer.result(_PATIENCE)


def _free_ports(count: int) -> list[int]:
    """Ports that no program is given by chance, because a broker that stops takes its port again when it starts."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(_LOWEST_PORT, _HIGHEST_PORT)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def _id() -> str:
    """Kafka's ids are of 22 letters."""
    return uuid.uuid4().hex[:22]
