"""A shard of the embedding tables: rows with inline optimizer state, look-up, update, snapshot.

A look-up or update goes from the server to `Shard`, and from there to one kernel for each feature group.

- A key belongs to one partition, and a partition to one server.
- A key has at most one row in memory, or at most one live record on a disk, never both.
- No row that a step uses is evicted in that step: its batch is in flight.
- An update is applied once: a step that `requests.AppliedSteps` has is not applied again.
- In a memory file, at most one request is in progress. Each change of more than one word is logged before it is made,
  so the next process can undo or complete it (`recovery`).
- A snapshot is the content at one moment: a row is copied before it first changes after that.
- Rows know no files of checkpoints. `checkpoints` reads snapshots and inserts rows.
"""
