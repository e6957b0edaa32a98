"""The file of a kept shard: its size, which is address space and not memory, and what it belongs to."""

from persia_cli.kernels.journal import whole_lines
from persia_cli.kernels.memory import HUGE_PAGE
from persia_cli.store.layout import LINE_BYTES, USES_BYTES, EmbeddingLayout, partitions_of
from persia_cli.store.memory.answers import address_space
from persia_cli.store.memory.applied_steps import SPAN
from persia_cli.store.memory.memory_file import MemoryFile

SAVE, CHANGES = 3, 4
"""Words of the file behind those of the journal: the number of the last save that was begun; and the step + 1 of the
checkpoint since which its changes are known, else 0."""


def shard_file(file: int, layout: EmbeddingLayout, server: int, servers: int, ranks: int, keep: bool) -> MemoryFile:
    """Open the file of a kept shard, `keep` its content, and reserve addresses for all that a shard may come to have.

    Raises what `MemoryFile` does.
    """
    nbytes = 2 * HUGE_PAGE + ranks * SPAN
    nbytes += address_space(ranks, len(layout.groups)) + 160 * (layout.salts().size + 64)
    for group in layout.groups:
        own = len(partitions_of(group.partitions, server, servers))
        index = own * (group.buckets * 64 + 4)
        nbytes += index + own * group.rows_per_partition * (group.width * 4 + 3)
        nbytes += own * group.evictions_per_partition * 10
        nbytes += own * (group.sketch_lines * LINE_BYTES + group.rows_per_partition * USES_BYTES)
        nbytes += 16 * whole_lines(group.width) + 12 * HUGE_PAGE
    return MemoryFile(file, f"{layout!r} {server} {servers} {ranks}", nbytes, keep)
