"""Checkpoints: the model after a step, as files that any number of servers can load.

- One run writes to a folder of checkpoints: `claim` refuses others when they start.
- The manifest is written last. A folder without one is unfinished, and no reader uses it.
- A manifest lists each file of its checkpoint with size and checksum. From then on only the copy of the run's record
  in it changes, and the progress of its run.
- Every partition of a feature group is in exactly one file of rows, and at most in one list of cold rows.
- A row is in one file. Rows that were in memory are in the order of keys, then of tables, so equal shards give equal
  files; cold rows are in no order.
- Numbers of rows in a manifest's tables, groups and files are equal (`manifest.contradiction`).
- The best checkpoint, the last one, and the only one that can be loaded are never removed (`retention`).
- `best.json` names a checkpoint that exists: the former one is removed after the file has changed.
"""
