"""A Kafka broker in this process: the mock of librdkafka, which other processes reach too."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

TOPIC = "clicks"
PARTITIONS = 4
"""Those of each topic of the mock."""


class Broker:
    """A broker and a producer for its topics."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        [broker] = producer.list_topics(TOPIC, timeout=10.0).brokers.values()
        self.address = f"kafka://{broker.host}:{broker.port}/{TOPIC}"

    def close(self) -> None:
        """End the broker, which its producer is."""
        del self._producer

    def send(self, values: Sequence[bytes], partition: int | None = None) -> None:
        """Append messages to a partition, or to all in turn."""
        for number, value in enumerate(values):
            at = number % PARTITIONS if partition is None else partition
            self._producer.produce(TOPIC, value, partition=at)
            self._producer.poll(0)
        assert self._producer.flush(30.0) == 0


def objects(rows: range) -> list[bytes]:
    """Return messages of one row each, whose `id` is its number."""
    return [json.dumps({"id": row, "item": f"i{row % 7}", "price": row / 2}).encode() for row in rows]


@contextmanager
def broker() -> Iterator[Broker]:
    """Yield a broker with an empty topic, which ends with the block."""
    kafka = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    producer = kafka.Producer({"test.mock.num.brokers": 1, "linger.ms": 1, "log_level": 0})
    made = Broker(producer)
    del producer
    yield made
    made.close()
