"""Shards with a cold log, and all of their rows."""

import gc
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from persia_cli.store.cold.cold_rows import ColdStorage
from persia_cli.store.memory_file import new_file
from persia_cli.store.recovery import Repairs, attach, create
from persia_cli.store.row_store import RowStore
from persia_cli.store.shard import Shard
from tests.support.killed import Job
from tests.support.shards import rows_in


@dataclass(frozen=True, eq=False)
class ColdJob(Job):
    """A job whose rows leave memory for a log in `folder`; `memory` rows of each group stay, and all fit elsewhere."""

    folder: Path = Path()
    memory: int = 0
    cold_bytes: int = 1 << 22

    def create(self) -> int:
        file = new_file("cold")
        shard = create(file, self.small, 0, 1, 1, cold_storage=self.place)
        shard.serve()
        del shard
        gc.collect()
        return file

    def attach(self, file: int) -> tuple[Shard, Repairs]:
        return attach(file, self.small, 0, 1, 1, cold_storage=self.place)

    def small_shard(self) -> Shard:
        """Return an empty shard with a log, in this process's memory."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shard = Shard(self.small, 0, 1, cold_storage=self.place)
        shard.begin_cold()
        return shard

    @property
    def place(self) -> ColdStorage:
        return ColdStorage(self.folder, 3)

    @property
    def small(self):
        """The layout with little memory."""
        groups = tuple(
            replace(group, capacity=self.memory // group.partitions * group.partitions, cold_bytes=self.cold_bytes)
            for group in self.layout.groups
        )
        return replace(self.layout, groups=groups)


def all_rows(store: RowStore) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return keys, tables and words (without padding) of the rows in memory and in the log, by key and table."""
    here = rows_in(store)
    keys, tables = here.keys, here.tables
    words = store.rows.arena.reshape(-1, store.group.width)[here.rows]
    if store.cold is not None:
        cold = store.cold.log.keys[store.cold.log.records > 0]
        places, numbers = np.arange(cold.size).repeat(len(store.group.tables)), [t.number for t in store.group.tables]
        found = store.cold.find(cold[places], np.tile(np.array(numbers, np.uint16), cold.size))
        records = found.words.reshape(-1, store.cold.size.record_bytes // 4)
        # A key of several tables is listed for each.
        records = records[np.unique(found.records, return_index=True)[1]]
        keys = np.concatenate([keys, records[:, :2].copy().view(np.uint64).reshape(-1)])
        tables = np.concatenate([tables, records.view(np.uint32)[:, 4].astype(np.uint16)])
        words = np.concatenate([words, records[:, 6:]])
    order = np.lexsort((tables, keys))
    used = store.group.state_at + sum(store.group.optimizer.states(store.group.dim).values())
    return keys[order], tables[order], words[order][:, :used].view(np.uint32)


def other_rows(one: Shard, other: Shard) -> list[str]:
    """Return in what the rows of two shards differ, wherever they are."""
    found = []
    for mine, theirs in zip(one.stores, other.stores, strict=True):
        here, there = all_rows(mine), all_rows(theirs)
        name = f"group {mine.group.number}"
        if not np.array_equal(here[0], there[0]) or not np.array_equal(here[1], there[1]):
            found.append(f"{here[0].size} and {there[0].size} rows of {name}")
        elif changed := int((here[2] != there[2]).any(1).sum()):
            found.append(f"{changed} rows of {name}")
    counted = ("admitted", "not_admitted", "refused", "gradients_missing", "gradients_refused")
    for table, mine in one.counters().items():
        pairs = {count: (getattr(mine, count), getattr(other.counters()[table], count)) for count in counted}
        found += [f"{count} of {table}: {pair}" for count, pair in pairs.items() if pair[0] != pair[1]]
    return found
