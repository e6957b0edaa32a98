"""The rows of one feature group on one server that are not in memory, in a log on a disk.

The system's page cache may hold blocks, so reads are fast as long as the machine has memory to spare.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.disk import is_out_of_space
from persia_cli.errors import DiskError, DiskFaultError
from persia_cli.kernels.rows.rows import RowArena
from persia_cli.kernels.table import buckets, cold
from persia_cli.kernels.toolchain.memory import zeros
from persia_cli.store.cold.geometry import geometry
from persia_cli.store.cold.segments import LogSegment, allow_files, blocks_in, prepare_folder
from persia_cli.store.layout import GroupSpec
from persia_cli.store.memory_file import Memory

LEAST_READS = 32
"""Smallest number of records that one thread reads; for fewer, a second thread costs more than it saves."""
MOST_LIVE, MOST_LIVE_WHEN_TIGHT = 0.5, 0.75
"""Live share of a segment's records below which compaction copies them and removes the segment. The second one holds if
less than TIGHT of the segments are free."""
TIGHT, LEAST_FREE = 1 / 8, 2
"""The fraction, and the number of segments that must be free after each write. Without them, the oldest rows go."""
COMPACTED = 2
"""Blocks that compaction reads for each block that is written."""
WRITTEN, SEQUENCE = 0, 1
"""Places in memory that lasts longer than the process: number of the open segment << BLOCK_BITS | its blocks, in one
word so that no kill comes between the two; and the sequence number of the next block."""
BLOCK_BITS = 32

Keys = NDArray[np.uint64]
Tables = NDArray[np.uint16]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ColdStorage:
    """The folder of a server's logs, and how they are read."""

    folder: Path
    threads: int = 1
    """Number of parts that are read at the same time."""
    run: Callable[[Callable[[int], int], Iterable[int]], Iterable[int]] = map
    """A function that calls another for each part, as `map` does, on as many threads."""
    clock_ns: Callable[[], int] = int
    """The clock by which waits are measured, in nanoseconds."""


class Records(NamedTuple):
    """Records that were read, each with the place of its key among those wanted."""

    positions: Rows
    records: Rows
    words: NDArray[np.float32]
    """float32[n * words of a record]."""


class CutSegment(NamedTuple):
    """A segment in a checkpoint: it does not change, and its live records are those of that moment."""

    segment: LogSegment
    sequence: int
    """Sequence number of its first block, which no other segment of the log has."""
    bits: NDArray[np.uint64]
    """Copy of the words of `ColdLog.live` that have a bit of a record of the segment."""
    first: int
    """The bit of the first record."""
    records: int

    @property
    def live(self) -> NDArray[np.bool_]:
        """bool[records]: True for live records."""
        bits = np.unpackbits(self.bits.view(np.uint8), bitorder="little")
        return bits[self.first : self.first + self.records].astype(np.bool_)


class ColdCounts(NamedTuple):
    """The work of the log since it began; each is int64[1]."""

    reads: NDArray[np.int64]
    """Records read from the disk or its page cache."""
    waited_us: NDArray[np.int64]
    """Microseconds for which requests waited for reads."""
    bytes_written: NDArray[np.int64]


class ColdRows:
    """The log of a row store. One thread uses it."""

    def __init__(self, group: GroupSpec, partitions: int, storage: ColdStorage, memory: Memory, tables: int) -> None:
        """Prepare the memory; `begin` or `attach` must follow. `tables` is the number of tables of the job."""
        self.size = size = geometry(group, partitions)
        self._folder = storage.folder / f"group-{group.number}"
        longs = memory(size.buffer_blocks * size.block_bytes // 8, np.uint64)
        self._lasting: NDArray[np.int64] = memory(2, np.int64)
        self.log = cold.ColdLog(
            words=longs.view(np.float32),
            marks=longs.view(np.uint32),
            longs=longs,
            filled=memory(1, np.int64),
            buffer_first=np.zeros(1, np.int64),
            buffer_space=np.zeros(1, np.int64),
            keys=zeros(size.slots, np.uint64),
            records=zeros(size.slots, np.uint32),
            live=zeros(-(-size.records // 64), np.uint64),
            of_segment=np.zeros(size.segments, np.int64),
            width=np.uint64(group.width),
            per_block=np.uint64(size.per_block),
            block_words=np.uint64(size.block_bytes // 4),
            per_segment=np.uint64(size.per_segment),
        )
        self._segments: dict[int, LogSegment] = {}
        self._files = np.full(size.segments, -1, np.int32)
        self._sequences: dict[int, int] = {}
        """Sequence number of the first block of each segment."""
        self._compacting: tuple[int, int] | None = None
        """Number of the segment that is being compacted, and its next block."""
        self._storage = storage
        self._scratch: list[NDArray[np.uint64]] = []
        self.copied = True
        """True if the last checkpoint has copies of the segments, and not these files themselves."""
        self.dropped: NDArray[np.int64] = memory(tables, np.int64)
        """int64[tables]: rows of each table that were dropped, because `size` was used up or the disk was full."""
        self.loaded: NDArray[np.int64] = memory(tables, np.int64)
        """int64[tables]: rows of each table that were loaded into the log."""
        self.counts = ColdCounts(*memory(3, np.int64).reshape(3, 1))
        allow_files(2 * size.segments + storage.threads)

    def begin(self) -> None:
        """Begin an empty log; the files of an earlier one are removed."""
        prepare_folder(self._folder, keep=False)
        self._lasting[:] = 0
        self.log.filled[0] = 0
        self._open_next()

    @property
    def rows(self) -> int:
        """Number of rows in the log."""
        return int(self.log.of_segment.sum())

    @property
    def _opened(self) -> tuple[int, int]:
        """Number of the open segment, and its blocks."""
        return divmod(int(self._lasting[WRITTEN]), 1 << BLOCK_BITS)

    # Take over from an earlier process

    def attach(self, index: buckets.Index, rows: int) -> None:
        """Continue the log of a process that has ended; `index` is the sound one of the rows in memory.

        Raise DiskError for files that are damaged, and if files are missing, so that fewer than `rows` are found.
        """
        log, size = self.log, self.size
        segments = {segment.number: segment for segment in prepare_folder(self._folder, keep=True)}
        opened, blocks = self._opened
        if opened not in segments or blocks_in(size, segments[opened]) < blocks:
            raise self._missing()
        for number in [number for number in segments if number != opened and not blocks_in(size, segments[number])]:
            # The process ended before it opened this segment.
            segments.pop(number).remove()
        # The buffer still has the records behind the counted blocks.
        segments[opened].nbytes = blocks * size.block_bytes
        for array in (log.keys, log.records, log.live, log.of_segment):
            array[:] = 0
        self._segments = segments
        for number, segment in segments.items():
            self._files[number] = segment.file
        self._sequences = {number: self._first_sequence(segment) for number, segment in segments.items()}
        if blocks == size.segment_blocks or blocks * size.per_block + log.filled[0] > size.per_segment:
            # The process ended between two of the changes with which it counted the blocks that it had written.
            self._open_next()
        else:
            self._set_buffer(opened, blocks)
        tables = np.zeros(log.keys.size, np.uint16)
        cold.rebuild(log, index, log.marks, log.longs, int(log.buffer_first[0]), int(log.filled[0]), tables)
        for number in sorted(segments, key=lambda number: -self._sequences[number]):
            for start, blocks_read in self._backwards(segments[number]):
                first = number * size.per_segment + start * size.per_block
                cold.rebuild(log, index, blocks_read.view(np.uint32), blocks_read, first, -1, tables)
        # A kill while rows are dropped leaves some that are counted as dropped.
        if self.rows < rows:
            raise self._missing()

    def _missing(self) -> DiskFaultError:
        return DiskFaultError(f"{self._folder} does not have all rows that an earlier process wrote there")

    def _first_sequence(self, segment: LogSegment) -> int:
        if not blocks_in(self.size, segment):
            return int(self._lasting[SEQUENCE])
        return int(segment.read(0, 16)[1]) >> int(cold.COUNT_BITS)

    def _backwards(self, segment: LogSegment) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """Yield a segment's blocks, the last first: the number of the first of some, and those."""
        for start, stop in reversed(self._pieces(blocks_in(self.size, segment))):
            yield start, self._checked(segment, start, stop)

    def _pieces(self, blocks: int) -> list[tuple[int, int]]:
        step = self.size.buffer_blocks
        return [(start, min(start + step, blocks)) for start in range(0, blocks, step)]

    def _checked(self, segment: LogSegment, start: int, stop: int) -> NDArray[np.uint64]:
        """Return some blocks of a segment; raise DiskError if one is damaged."""
        nbytes = self.size.block_bytes
        blocks = segment.read(start * nbytes, stop * nbytes)
        if (bad := cold.damaged_block(blocks, nbytes // 4)) >= 0:
            raise self._damage(segment.path, start + bad)
        return blocks

    def _damage(self, path: Path, block: int) -> DiskFaultError:
        return DiskFaultError(
            f"{path} is damaged at byte {block * self.size.block_bytes:,}: the disk did not return what was written; "
            "resume from a checkpoint, with embedding.cold.path on another disk"
        )

    # Read

    def find(self, keys: Keys, tables: Tables) -> Records:
        """Return the records of those keys that have one; raise DiskError if a file cannot be read or is damaged."""
        positions, records = np.empty(keys.size + 16, np.int64), np.empty(keys.size + 16, np.int64)
        count = cold.find_records(self.log, keys, positions, records)
        order = np.argsort(records[:count], kind="stable")
        positions, records = positions[:count][order], records[:count][order]
        started_ns = self._storage.clock_ns()
        words = self._read(records)
        self.counts.waited_us[0] += (self._storage.clock_ns() - started_ns) // 1000
        self.counts.reads[0] += count
        by_record = words.reshape(count, self.size.record_bytes // 4)
        right = by_record.view(np.uint32)[:, int(cold.TABLE)] == tables[positions]
        if right.all():
            return Records(positions, records, words)
        return Records(positions[right], records[right], by_record[right].reshape(-1))

    def _read(self, records: Rows) -> NDArray[np.float32]:
        """Return the words of records, which are in ascending order."""
        out = np.empty(records.size * self.size.record_bytes // 4, np.float32)
        parts = max(1, min(self._storage.threads, records.size // LEAST_READS))
        edges = [records.size * part // parts for part in range(parts + 1)]
        while len(self._scratch) < parts:
            self._scratch.append(np.frombuffer(mmap.mmap(-1, self.size.block_bytes), np.uint64))

        def read(part: int) -> int:
            scratch = self._scratch[part]
            first, last = edges[part], edges[part + 1]
            arguments = self.log, self._files, records, first, last, scratch, scratch.view(np.float32), out
            return int(cold.read_records(*arguments))

        results = [read(0)] if parts == 1 else list(self._storage.run(read, range(parts)))
        if any(results):
            self._explain(records)
        return out

    def _explain(self, records: Rows) -> None:
        """Raise DiskError for the first of the records that cannot be read."""
        first = int(self.log.buffer_first[0])
        for record in records.tolist():
            if first <= record < first + self.log.filled[0]:
                continue
            segment = self._segments[record // self.size.per_segment]
            block = record % self.size.per_segment // self.size.per_block
            self._checked(segment, block, block + 1)
        raise DiskFaultError(f"{self._folder} could not be read at first, and could be a moment later: check the disk")

    # Write

    def append(
        self, keys: Keys, tables: Tables, last_used: NDArray[np.uint32], uses: NDArray[np.uint32], words: RowArena
    ) -> None:
        """Append rows of keys that are neither in memory nor in the log; `words` has their rows in the same order."""
        at = 0
        while (at := cold.append_rows(self.log, keys, tables, last_used, uses, words.arena, at)) < keys.size:
            self.flush()

    def flush(self) -> None:
        """Write the buffer to the open segment, and compact others; call it while no entry of a journal is valid.

        Raise DiskError.
        """
        if self._write():
            self._compact()

    def _write(self) -> int:
        """Write the buffer; return the number of blocks written."""
        log, size, lasting = self.log, self.size, self._lasting
        count = int(log.filled[0])
        if not count:
            return 0
        blocks, (number, before) = -(-count // size.per_block), self._opened
        cold.end_blocks(log, int(lasting[SEQUENCE]))
        if not self._append(number, blocks):
            return 0
        self.counts.bytes_written[0] += blocks * size.block_bytes
        # In this order: a process that dies in between leaves records twice, in the file and in the buffer.
        lasting[SEQUENCE] += blocks
        lasting[WRITTEN] += blocks
        log.filled[0] = 0
        if before + blocks >= size.segment_blocks:
            self._open_next()
        else:
            self._set_buffer(number, before + blocks)
        return blocks

    def _append(self, number: int, blocks: int) -> bool:
        """Append the first blocks of the buffer to a segment; return False if they were dropped, as the disk is full.

        A full disk is as a `size` that is used up: the oldest rows go first, if that frees space.
        """
        content = self.log.longs[: blocks * self.size.block_bytes // 8]
        for _ in range(2):
            try:
                self._segments[number].append(content)
            except DiskError as error:
                if not is_out_of_space(error):
                    raise
            else:
                return True
            if (oldest := self._oldest_alone) is None:
                break
            self._drop(oldest)
        views = content.view(np.float32), content.view(np.uint32), content
        cold.move_records(self.log, *views, int(self.log.buffer_first[0]), 0, True, self.dropped)
        self.log.filled[0] = 0
        return False

    @property
    def _oldest_alone(self) -> int | None:
        """Number of the oldest segment whose space is free once it is removed: it is in no checkpoint."""
        compacting = self._compacting[0] if self._compacting else None
        alone = (number for number in self._sealed if number != compacting and self._segments[number].is_alone)
        return next(alone, None)

    def _set_buffer(self, number: int, blocks: int) -> None:
        size = self.size
        self.log.buffer_first[0] = number * size.per_segment + blocks * size.per_block
        self.log.buffer_space[0] = min(size.buffer_blocks, size.segment_blocks - blocks) * size.per_block

    def _open_next(self) -> None:
        """Open an empty segment for the buffer, which is empty."""
        free = [number for number in range(self.size.segments) if number not in self._segments]
        number = free[0]
        self._segments[number] = segment = LogSegment(self._folder / f"segment-{number}", number, create=True)
        self._files[number] = segment.file
        self._sequences[number] = int(self._lasting[SEQUENCE])
        # Last: a process that dies before this leaves an empty file, and the segment before stays the open one.
        self._lasting[WRITTEN] = number << BLOCK_BITS
        self._set_buffer(number, 0)

    # Compaction

    @property
    def _sealed(self) -> list[int]:
        """Numbers of the segments that are not written any more, the oldest first."""
        return sorted(self._segments.keys() - {self._opened[0]}, key=self._sequences.__getitem__)

    @property
    def _free(self) -> int:
        return self.size.segments - len(self._segments)

    def _compact(self) -> None:
        """Copy live records out of segments with few of them; drop the oldest rows if there is no space left."""
        budget = COMPACTED * self.size.buffer_blocks
        while (budget > 0 or self._free < LEAST_FREE) and self._choose():
            budget -= self._compact_piece(max(1, budget))
        while self._free < LEAST_FREE:
            self._drop(self._sealed[0])

    def _choose(self) -> bool:
        """Begin to compact a segment, unless one is begun; return False if none is worth it."""
        if self._compacting is None and (sealed := self._sealed):
            live = self.log.of_segment
            emptiest = min(sealed, key=lambda number: live[number])
            is_tight = self._free < max(TIGHT * self.size.segments, LEAST_FREE)
            most = MOST_LIVE_WHEN_TIGHT if is_tight else MOST_LIVE
            if live[emptiest] < most * self.size.per_segment:
                self._compacting = emptiest, 0
        return self._compacting is not None

    def _compact_piece(self, blocks: int) -> int:
        """Copy the live records of the next blocks of the segment that is being compacted; return their number."""
        assert self._compacting is not None
        number, start = self._compacting
        segment = self._segments[number]
        stop = min(blocks_in(self.size, segment), start + blocks)
        if self.log.of_segment[number]:
            self._move(segment, start, stop, drop=False)
        if stop == blocks_in(self.size, segment) or not self.log.of_segment[number]:
            # The copies must be on the disk before the originals go.
            self._write()
            self._forget(number)
        else:
            self._compacting = number, stop
        return max(1, stop - start)

    def _move(self, segment: LogSegment, start: int, stop: int, drop: bool) -> None:
        size = self.size
        for first, last in self._pieces(stop - start):
            blocks = self._checked(segment, start + first, start + last)
            record = segment.number * size.per_segment + (start + first) * size.per_block
            at = 0
            views = blocks.view(np.float32), blocks.view(np.uint32), blocks
            while (at := cold.move_records(self.log, *views, record, at, drop, self.dropped)) < (
                last - first
            ) * size.per_block:
                self._write()

    def _drop(self, number: int) -> None:
        """Drop the rows of a segment: the disk space is used up."""
        segment = self._segments[number]
        self._move(segment, 0, blocks_in(self.size, segment), drop=True)
        self._forget(number)

    def _forget(self, number: int) -> None:
        if self._compacting is not None and self._compacting[0] == number:
            self._compacting = None
        self._segments.pop(number).remove()
        self._files[number] = -1
        del self._sequences[number]

    # Checkpoints

    def cut(self) -> Sequence[CutSegment]:
        """Return the present content of the log, in files that do not change any more."""
        self.flush()
        # Compaction may have left copies in the buffer. One free segment is taken here, by a full one or by sealing.
        self._write()
        if self._opened[1]:
            self._open_next()
        return [self._cut_of(number) for number in self._sealed if self.log.of_segment[number]]

    def _cut_of(self, number: int) -> CutSegment:
        size, segment = self.size, self._segments[number]
        records = blocks_in(size, segment) * size.per_block
        first = number * size.per_segment
        bits = self.log.live[first // 64 : (first + records) // 64 + 1].copy()
        return CutSegment(segment, self._sequences[number], bits, first % 64, records)

    def close(self) -> None:
        """Remove all files."""
        for segment in [*self._segments.values()]:
            segment.remove()
        with suppress(OSError):  # others may have files there
            self._folder.rmdir()
