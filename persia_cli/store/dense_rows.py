"""The rows that store dense weights, and the server of each."""

import numpy as np

from persia_cli.kernels import hashing
from persia_cli.store.batch_rows import UniqueRows
from persia_cli.store.layout import GroupSpec, partition_owners


def dense_rows(group: GroupSpec, servers: int, count: int) -> UniqueRows:
    """Return the rows of ids 0 to `count` - 1 of the reserved table: by server, then by id.

    `inverse` int32[count] is the position of each id's row among those of all servers.
    """
    table = group.tables[0]
    numbers = np.full(count, table.number, np.uint16)
    salts = np.zeros(table.number + 1, np.uint64)
    salts[table.number] = table.salt
    keys = np.empty(count, np.uint64)
    hashing.hash_ids(np.arange(count, dtype=np.uint64), numbers, salts, keys)
    # The high 32 bits of a key choose its partition, as they do in the index of a row store.
    partitions = ((keys >> np.uint64(32)) * np.uint64(group.partitions)) >> np.uint64(32)
    owners = partition_owners(group.partitions, servers)[partitions]
    order = np.argsort(owners, kind="stable")
    inverse = np.empty(count, np.int32)
    inverse[order] = np.arange(count, dtype=np.int32)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=servers))]).astype(np.int64)
    return UniqueRows(keys[order], numbers, bounds, inverse, None)
