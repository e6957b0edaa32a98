"""A Kafka topic, read from offsets that the reader knows itself: without a consumer group, and nothing is skipped."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from xxhash import xxh64_intdigest

from persia_cli.errors import DataError, PersiaError, UserError, one_line

ANSWER_S = 30.0
"""Deadline for an answer of any broker."""
BATCH = 10_000
"""Messages that one call returns at most."""
_ADDRESS = re.compile(r"kafka://(?P<brokers>[^/@?]+)/(?P<topic>[\w.-]+)")
Result = TypeVar("Result")


class Came(NamedTuple):
    """A message."""

    partition: int
    offset: int
    value: bytes
    time_ms: int

    @property
    def checksum(self) -> int:
        """A number that another message hardly has."""
        return xxh64_intdigest(self.value, self.time_ms & (1 << 64) - 1)


def parse_address(address: str) -> tuple[str, str]:
    """Return brokers and topic of `kafka://BROKER[:PORT],…/TOPIC`; raises UserError."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        hint = "; credentials belong into --config FILE" if "@" in address else ""
        shown = address.rpartition("@")[2]
        raise UserError(f"{shown} is not the address of a topic; write kafka://BROKER:PORT/TOPIC{hint}")
    return found["brokers"], found["topic"]


def read_properties(file: Path | None) -> dict[str, str]:
    """Return the properties of librdkafka in a file of lines `KEY=VALUE`; raises UserError."""
    if file is None:
        return {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config {file}: cannot be read, {one_line(error)}") from error
    properties = {}
    for number, line in enumerate(lines, 1):
        key, sign, value = line.strip().partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not sign or not key.strip():
            raise UserError(f"--config {file}, line {number}: expected KEY=VALUE, a property of librdkafka")
        properties[key.strip()] = value.strip()
    return properties


class Topic:
    """The messages of a topic from given offsets on; see `open_topic`."""

    def __init__(self, consumer: Any, brokers: str, name: str) -> None:
        self._consumer, self._brokers, self.name = consumer, brokers, name
        self.ended: set[int] = set()
        """Partitions whose last message has come."""
        self.cluster = str(self._ask(lambda: consumer.list_topics(name, timeout=ANSWER_S)).cluster_id)

    def _ask(self, call: Callable[[], Result]) -> Result:
        from confluent_kafka import KafkaException

        try:
            return call()
        except KafkaException as error:
            raise PersiaError(f"kafka://{self._brokers} does not answer: {_text(error.args[0])}") from error

    def partitions(self) -> set[int]:
        """Return the numbers of all partitions; raises PersiaError if no broker answers, UserError without a topic."""
        topic = self._ask(lambda: self._consumer.list_topics(self.name, timeout=ANSWER_S)).topics[self.name]
        if topic.error is not None or not topic.partitions:
            reason = "it has no partition" if topic.error is None else _text(topic.error)
            raise UserError(f"topic {self.name} of kafka://{self._brokers} cannot be read: {reason}")
        return set(topic.partitions)

    def ends(self, partition: int) -> tuple[int, int]:
        """Return the first offset that the broker still has, and the one after the last."""
        from confluent_kafka import TopicPartition

        of = TopicPartition(self.name, partition)
        low, high = self._ask(lambda: self._consumer.get_watermark_offsets(of, timeout=ANSWER_S, cached=False))
        return low, high

    def require(self, partition: int, offset: int) -> int:
        """Return the first offset of a partition; raise DataError if messages from `offset` on are gone."""
        low, high = self.ends(partition)
        if low <= offset <= high:
            return low
        where = f"partition {partition} of topic {self.name}"
        if offset < low:
            raise DataError(
                f"{where} begins at offset {low:,} now, and the next message to land has {offset:,}: {low - offset:,} "
                "messages were removed before they were landed; give a new folder to go on without them"
            )
        raise DataError(
            f"{where} ends at offset {high:,}, and {offset:,} messages are landed already: the broker has lost some, "
            "or the topic was made again; give a new folder"
        )

    def read_from(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on."""
        from confluent_kafka import TopicPartition

        self.ended.clear()
        self._consumer.assign([TopicPartition(self.name, *pair) for pair in sorted(offsets.items())])

    def poll(self, wait_s: float) -> Iterator[Came]:
        """Yield the messages that have come, or come within so many seconds.

        Raises DataError for an offset that was removed, UserError if the topic may not be read. Other errors pass:
        librdkafka tries again for ever, and `partitions` shows whether a broker answers.
        """
        from confluent_kafka import KafkaError

        gone = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
        refused = (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError._AUTHENTICATION,
        )
        for message in self._consumer.consume(BATCH, wait_s):
            error = message.error()
            if error is None:
                self.ended.discard(message.partition())
                yield Came(message.partition(), message.offset(), message.value() or b"", message.timestamp()[1])
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ended.add(message.partition())
            elif error.code() in gone:
                self.require(message.partition(), message.offset())
                raise DataError(f"partition {message.partition()} of topic {self.name}: {_text(error)}")
            elif error.fatal() or error.code() in refused:
                raise UserError(f"topic {self.name} of kafka://{self._brokers} cannot be read: {_text(error)}")


@contextmanager
def open_topic(address: str, properties: Mapping[str, str]) -> Iterator[Topic]:
    """Yield the topic at an address; raises UserError for a wrong property, PersiaError if no broker answers."""
    brokers, name = parse_address(address)
    try:
        from confluent_kafka import Consumer, KafkaException
    except ModuleNotFoundError as error:
        raise UserError(
            f"{address} needs confluent-kafka, which is not installed: pip install 'persia-cli[kafka]'"
        ) from error
    settings = {
        "group.id": "persia",  # librdkafka wants one; it is not used, since partitions are assigned here
        **properties,
        "bootstrap.servers": brokers,
        "enable.auto.commit": False,  # positions are those of the files
        "auto.offset.reset": "error",  # a removed offset is one
        "enable.partition.eof": True,
    }
    logger = logging.getLogger("persia.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    try:
        consumer = Consumer(settings, logger=logger)
    except KafkaException as error:
        raise UserError(f"--config: {_text(error.args[0])}") from error
    try:
        yield Topic(consumer, brokers, name)
    finally:
        consumer.close()


def _text(error: Any) -> str:
    return " ".join(str(error.str()).split()).removesuffix(".")
