"""Landing: the messages of a topic are collected and written, a file for each partition, at limits or at the end."""

import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

from persia_cli.data.land.folder import LandingFolder, Position
from persia_cli.data.land.messages import MessageFlawError, Reader
from persia_cli.data.land.topic import Came, Topic
from persia_cli.errors import DataError

MOST_MESSAGES, MOST_BYTES = 1 << 20, 1 << 26
"""Messages in memory, and bytes of them, at which they are written."""
LOOK_S = 30.0
"""Seconds between two looks for new partitions."""
WAIT_S = 0.2


@dataclass(slots=True)
class _Waiting:
    """The messages of a partition in memory."""

    position: Position
    """The one after the last of them; the message before the first is read again if its checksum is known."""
    messages: list[Came] = field(default_factory=list)


class Landing:
    """Lands one topic in one folder."""

    def __init__(
        self,
        topic: Topic,
        folder: LandingFolder,
        read: Reader,
        every_s: float,
        max_bad: int = 0,
        columns: Any = None,
        report: Callable[[str, str], None] = lambda label, text: None,
    ) -> None:
        """Read each partition from its position on; raises DataError if those messages are gone.

        Messages are written at an age of `every_s` seconds, and at most `max_bad` may be left out. `columns` is the
        Arrow schema of the first file, None for that of its messages. `report` is called with a label and a sentence.
        """
        self._topic, self._folder, self._read = topic, folder, read
        self._every_s, self._max_bad = every_s, max_bad
        self._columns, self._report = columns, report
        self._waiting: dict[int, _Waiting] = {}
        self._messages = self._nbytes = self._flaws = 0
        self._since: float | None = None
        """When the first message in memory came."""
        self._looked = time.monotonic()
        self._find_partitions(topic.partitions())

    def run(self, until_end: bool, is_stopped: Callable[[], bool]) -> None:
        """Land messages until it is stopped, or until all that the topic has are landed; the last files are written.

        Raises DataError for a message that cannot be landed, once those before it are; PersiaError if no broker
        answers. Messages in memory then come again in the next process.
        """
        ends = {partition: self._topic.ends(partition)[1] for partition in self._waiting} if until_end else {}
        while not is_stopped():
            for message in self._topic.poll(WAIT_S):
                self._take(message)
                if self._messages >= MOST_MESSAGES or self._nbytes >= MOST_BYTES:
                    self._write()
            now = time.monotonic()
            if self._since is not None and now - self._since >= self._every_s:
                self._write()
            done = self._topic.ended
            if until_end and all(self._waiting[at].position.next >= end or at in done for at, end in ends.items()):
                break
            if now - self._looked >= LOOK_S:
                self._looked = now
                if new := self._topic.partitions() - self._waiting.keys():
                    self._find_partitions(new)
        self._write()

    def _find_partitions(self, new: Set[int]) -> None:
        """Begin to read partitions that are not read yet, and go on with the others."""
        positions, offsets = self._folder.positions, {}
        is_new = not positions
        for partition in sorted(new | self._waiting.keys()):
            if partition in new:
                # A partition that came later has been there from its first message on.
                first = self._topic.ends(partition)[0] if is_new else 0
                self._waiting[partition] = _Waiting(positions.setdefault(partition, Position(first)))
            position = self._waiting[partition].position
            begin = self._topic.require(partition, position.next)
            offsets[partition] = max(begin, position.next - (position.before is not None))
        self._folder.record()
        self._topic.read_from(offsets)

    def _take(self, message: Came) -> None:
        waiting = self._waiting[message.partition]
        if message.offset < waiting.position.next:
            if waiting.position.before not in (None, message.checksum):
                raise DataError(
                    f"{self._where(message)} is not the one that was landed, as the topic was made again; give "
                    "a new folder"
                )
            return
        waiting.messages.append(message)
        waiting.position = Position(message.offset + 1, message.checksum)
        self._messages += 1
        self._nbytes += len(message.value)
        self._since = time.monotonic() if self._since is None else self._since

    def _where(self, message: Came) -> str:
        return f"the message at offset {message.offset:,} of partition {message.partition} of topic {self._topic.name}"

    def _write(self) -> None:
        """Write all messages in memory; raises DataError for one that cannot be, once those before it are written."""
        for _, waiting in sorted(self._waiting.items()):
            messages, waiting.messages = waiting.messages, []
            if messages:
                self._write_messages(messages)
        self._messages = self._nbytes = 0
        self._since = None

    def _write_messages(self, messages: list[Came]) -> None:
        """Write messages of one partition."""
        last, table = messages[-1], None
        while messages and table is None:
            try:
                table = self._table(messages)
            except MessageFlawError as flaw:
                text = f"{self._where(messages[flaw.place])}: {flaw}"
                if self._flaws >= self._max_bad:
                    if before := messages[: flaw.place]:
                        self._land(before[-1], self._table(before))
                    raise DataError(f"{text}; to leave such messages out, give --max-bad N") from flaw
                self._flaws += 1
                self._report("left out", text)
                del messages[flaw.place]
        self._land(last, table)

    def _table(self, messages: list[Came]) -> Any:
        return self._read([message.value for message in messages], self._folder.columns or self._columns)

    def _land(self, last: Came, table: Any) -> None:
        if (name := self._folder.write(last.partition, last.offset, last.checksum, table)) is not None:
            self._report("landed", f"{name}: {table.num_rows:,} rows")
