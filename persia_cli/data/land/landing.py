"""Landing: the messages of a topic are collected and written, a file for each partition, at limits or at the end."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from persia_cli.data.land.folder import LandingFolder
from persia_cli.data.land.messages import MessageFlawError, Messages
from persia_cli.data.land.topic import Came, Topic
from persia_cli.errors import DataError, PersiaError

LOOK_S = 30.0
"""Seconds between two looks for new partitions."""
LOST_S = 300.0
"""Seconds without an answer of any broker after which landing ends."""
WAIT_S = 0.2
_SHORT_S = 5.0
"""Deadline for the answer to such a look."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The amounts of messages in memory at which they are written."""

    rows: int
    nbytes: int
    seconds: float
    flaws: int
    """Messages that may be left out since they cannot be rows."""


@dataclass(slots=True)
class _Waiting:
    """The messages of a partition in memory."""

    next: int
    """The offset after the last of them."""
    values: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


class Landing:
    """Lands one topic in one folder."""

    def __init__(
        self,
        topic: Topic,
        folder: LandingFolder,
        form: Messages,
        limits: Limits,
        columns: Any = None,
        report: Callable[[str, str], None] = lambda label, text: None,
    ) -> None:
        """Read each partition from where its last file ended; raises DataError if those messages are gone.

        `columns` is the Arrow schema of the first file, None for that of its messages. `report` is called with a label
        and a sentence.
        """
        self._topic, self._folder, self._form, self._limits = topic, folder, form, limits
        self._columns, self._report = columns, report
        self._waiting: dict[int, _Waiting] = {}
        self._rows = self._nbytes = self._flaws = 0
        self._since: float | None = None
        """When the first message in memory came."""
        self._answered = self._looked = time.monotonic()
        self._find_partitions(topic.partitions())
        folder.record()

    def run(self, until_end: bool, is_stopped: Callable[[], bool]) -> None:
        """Land messages until it is stopped, or until all that the topic has are landed; the last files are written.

        Raises DataError for a message that cannot be landed, once those before it are; PersiaError if no broker
        answers for LOST_S.
        """
        ends = {partition: self._topic.ends(partition)[1] for partition in self._waiting} if until_end else {}
        while not is_stopped():
            for message in self._topic.poll(WAIT_S):
                self._take(message)
                if self._rows >= self._limits.rows or self._nbytes >= self._limits.nbytes:
                    self._write()
            now = time.monotonic()
            if self._since is not None and now - self._since >= self._limits.seconds:
                self._write()
            done = self._topic.ended
            if until_end and all(self._waiting[each].next >= end or each in done for each, end in ends.items()):
                break
            if now - self._looked >= LOOK_S:
                self._look()
        self._write()

    def _find_partitions(self, found: list[int]) -> None:
        """Begin to read partitions that are not read yet."""
        is_first = not self._waiting
        for partition in found:
            if partition in self._waiting:
                continue
            offset = self._folder.next_of(partition)
            if offset is None:
                # A partition that came later has been there from its first message on.
                offset = self._topic.ends(partition)[0] if self._folder.is_new and is_first else 0
                self._folder.begin(partition, offset)
            self._topic.require(partition, offset)
            self._waiting[partition] = _Waiting(offset)
        self._topic.read_from({partition: waiting.next for partition, waiting in self._waiting.items()})

    def _look(self) -> None:
        """Look for new partitions; raises PersiaError if no broker has answered for LOST_S."""
        try:
            found = self._topic.partitions(_SHORT_S)
            self._answered = time.monotonic()
            if set(found) - set(self._waiting):
                self._find_partitions(found)
        except PersiaError as error:
            if error.exit_code != PersiaError.exit_code:
                raise
            if time.monotonic() - self._answered >= LOST_S:
                self._write()
                raise PersiaError(f"{error}, for {LOST_S:g} s; what came before is landed") from error
        self._looked = time.monotonic()

    def _take(self, message: Came) -> None:
        waiting = self._waiting[message.partition]
        if message.offset < waiting.next:
            return
        waiting.values.append(message.value)
        waiting.offsets.append(message.offset)
        waiting.next = message.offset + 1
        self._rows += self._form.rows(message.value)
        self._nbytes += len(message.value)
        self._since = time.monotonic() if self._since is None else self._since

    def _write(self) -> None:
        """Write all messages in memory; raises DataError for one that cannot be, once those before it are written."""
        try:
            for partition, waiting in sorted(self._waiting.items()):
                if waiting.values:
                    self._write_partition(partition, waiting)
        finally:
            with suppress(PersiaError):
                self._folder.record()
        self._rows = self._nbytes = 0
        self._since = None

    def _write_partition(self, partition: int, waiting: _Waiting) -> None:
        schema = self._columns if self._folder.schema is None else self._folder.schema
        values, offsets = waiting.values, waiting.offsets
        while True:
            try:
                table = self._form.table(values, schema) if values else None
                break
            except MessageFlawError as flaw:
                offset = offsets[flaw.place]
                text = f"the message at offset {offset:,} of partition {partition} of topic {self._topic.name}: {flaw}"
                if self._flaws >= self._limits.flaws:
                    before = self._form.table(values[: flaw.place], schema) if flaw.place else None
                    if flaw.place:
                        self._land(partition, offset - 1, before)
                    raise DataError(f"{text}; to leave such messages out, give --max-bad N") from flaw
                self._flaws += 1
                self._report("left out", text)
                del values[flaw.place], offsets[flaw.place]
        self._land(partition, waiting.next - 1, table)
        self._waiting[partition] = _Waiting(waiting.next)

    def _land(self, partition: int, last: int, table: Any) -> None:
        if (name := self._folder.write(partition, last, table)) is not None:
            self._report("landed", f"{name}: {table.num_rows:,} rows")
