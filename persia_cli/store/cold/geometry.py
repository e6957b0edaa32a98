"""The sizes of a feature group's cold log on one server."""

import math
from dataclasses import dataclass

from persia_cli.store.layout import GroupSpec, partitions_of

PAGE = 4096
BLOCK_HEAD, RECORD_HEAD = 16, 24
"""Bytes of a block before its first record, and of a record before its row; see `kernels.cold`."""
MOST_BLOCK_PAGES = 4
"""Rows of at most so many pages share blocks; a larger row has a block for itself."""
MOST_WASTE = 1 / 8
"""Fraction of a block that may be unused, unless larger blocks waste as much."""
BUFFER_BYTES, SEGMENT_BYTES = 2**22, 2**27
"""Approximate size of the buffer, and the largest size of a segment."""
MIN_SEGMENTS = 16
"""Segments of a log, so that compaction has some to choose from."""
MIN_BLOCKS = 4
"""Blocks of the smallest segment."""
INDEX_BYTES, LOAD = 12, 0.8
"""Bytes of a slot of the index, and the fraction of its slots that are used if every record is live."""

MAX_RECORDS = int(LOAD * 2**32)
"""Most records of a log: its index finds the slot of a key by 32 bits, and numbers records in 32 bits."""


@dataclass(frozen=True)
class ColdGeometry:
    """The sizes of a log: rows of `width` words, at most `nbytes` on the disk."""

    width: int
    nbytes: int

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return RECORD_HEAD + self.width * 4

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, a multiple of the page: the smallest that wastes little."""
        least = math.ceil((BLOCK_HEAD + self.record_bytes) / PAGE)
        sizes = range(least, max(least, MOST_BLOCK_PAGES) + 1)
        return PAGE * next((pages for pages in sizes if self._waste(pages) <= MOST_WASTE), min(sizes, key=self._waste))

    def _waste(self, pages: int) -> float:
        return 1 - self._records(pages * PAGE) * self.record_bytes / (pages * PAGE)

    def _records(self, nbytes: int) -> int:
        return min(255, (nbytes - BLOCK_HEAD) // self.record_bytes)

    @property
    def per_block(self) -> int:
        """Records of a block."""
        return self._records(self.block_bytes)

    @property
    def segment_blocks(self) -> int:
        """Blocks of a segment."""
        return max(MIN_BLOCKS, min(self.nbytes // MIN_SEGMENTS, SEGMENT_BYTES) // self.block_bytes)

    @property
    def per_segment(self) -> int:
        """Records of a segment."""
        return self.segment_blocks * self.per_block

    @property
    def segments(self) -> int:
        """Segments that may be on the disk at the same time."""
        return max(MIN_SEGMENTS, self.nbytes // (self.segment_blocks * self.block_bytes))

    @property
    def records(self) -> int:
        """Records that may be on the disk at the same time."""
        return self.segments * self.per_segment

    @property
    def buffer_blocks(self) -> int:
        """Blocks of the buffer."""
        return min(self.segment_blocks, max(1, BUFFER_BYTES // self.block_bytes))

    @property
    def slots(self) -> int:
        """Slots of the index."""
        return math.ceil(self.records / LOAD)

    @property
    def rows(self) -> int:
        """Rows that fit at any time if none returns to memory: of the segments, one is being written, checkpoints seal
        another before it is full, and two must be free."""
        return (self.segments - 4) * self.per_segment

    @property
    def min_bytes(self) -> int:
        """Disk space of the smallest log of such rows."""
        return MIN_SEGMENTS * MIN_BLOCKS * self.block_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of the index, the bits of live records and the buffer."""
        return self.slots * INDEX_BYTES + self.records // 8 + self.buffer_blocks * self.block_bytes


def geometry(group: GroupSpec, partitions: int) -> ColdGeometry:
    """Return the sizes of the log of a server that owns so many partitions of a group with a cold tier."""
    return ColdGeometry(group.width, group.cold_bytes * partitions // group.partitions)


def geometries(group: GroupSpec, servers: int) -> list[ColdGeometry]:
    """Return the sizes of the logs of a group on all servers; none if its rows are lost when they leave memory."""
    counts = [len(partitions_of(group.partitions, server, servers)) for server in range(servers)]
    return [geometry(group, count) for count in counts if count and group.cold_bytes]


def rows_on_disk(group: GroupSpec, servers: int) -> int:
    """Return the most rows of a group that all servers together have on disks."""
    return sum(size.rows for size in geometries(group, servers))


def log_memory(group: GroupSpec, servers: int) -> int:
    """Return the bytes of memory that the logs of a group take on all servers together."""
    return sum(size.memory_bytes for size in geometries(group, servers))
