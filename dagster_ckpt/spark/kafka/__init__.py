"""Kafka: what the brokers of a query's sources tell, and headers for the records that a query writes."""

from dagster_ckpt.spark.kafka.brokers import BrokersAway, TopicState
from dagster_ckpt.spark.kafka.counted import by_partition, records
from dagster_ckpt.spark.kafka.headers import with_kafka_headers
from dagster_ckpt.spark.kafka.inputs import KafkaInputs, parse_topics, with_earlier_topics

__all__ = [
    "BrokersAway",
    "KafkaInputs",
    "TopicState",
    "by_partition",
    "parse_topics",
    "records",
    "with_earlier_topics",
    "with_kafka_headers",
]
