"""Kernels of a server's table: index, rows, journal, rows on disks.

- A row number is in at most one slot. Rows in use are those below `used`.
- The slots of a bucket are filled without gaps.
- A key is in the second bucket only if the first is full, or if buckets are few. A full bucket stays full while
  such keys lie elsewhere, so an empty slot in the first bucket proves that the second has no such key.
- `fill` of a partition is its number of keys, at most the capacity.
- A look-up changes the index by entries of the journal: first `publish` makes an entry valid, then its stores are made.
  An entry can be carried out again after any part of it.
- Entries alternate, so the last valid entry stays whole while the next one is written.
- The steps of last use of keys only rise, except when a run begins anew.
- A record is live if and only if the index of the log has it. A row in memory has no live record.

`check.check_index` and `store.recovery.check_store` verify the first four.
"""
