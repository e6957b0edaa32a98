"""Invariants after any sequence of look-ups, repeats and updates, on a shard that process after process recovers."""

import gc
import os

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from persia_cli.store.memory_file import new_file
from persia_cli.store.recovery import attach, create
from persia_cli.store.requests import answers_as_before
from persia_cli.store.wire_rows import encode_rows
from tests import naive_store
from tests.support.killed import windows_of
from tests.support.shards import arrays
from tests.unit.store.test_store_invariants import LAYOUTS, PLACES, Life, names_of


class KeptLife(Life):
    """Look-ups of two ranks are repeated, as by a client without an answer, before and after a process ends."""

    @initialize(layout=LAYOUTS)
    def begin(self, layout):
        self.layout, self.group = layout, layout.groups[0]
        self.file = new_file("life")
        self.shard, self.twin = create(self.file, layout, 0, 1, 2), naive_store.Store(layout)
        self.shard.serve()
        self.keys = names_of(layout)
        self.step, self.batches, self.waiting = 0, 0, {}
        self.last = {}

    def teardown(self):
        if hasattr(self, "file"):
            del self.shard
            gc.collect()
            os.close(self.file)

    @rule(places=PLACES, rank=st.integers(0, 1))
    def ask(self, places, rank):
        """A look-up of training as servers execute it, each step of a rank once."""
        names, step = self.names(places), max(self.step, self.last.get(rank, (0, -1))[1] + 1)
        self.step = step
        self.batches += 1
        [(rows, new)] = self.shard.look_up_batch([arrays(names)], step, rank, self.batches)
        before = {row.name for row in self.twin.rows()}
        values = self.twin.look_up(names, step, True)
        assert rows.tobytes() == encode_rows(values, self.group.wire).tobytes()
        assert [names[at] in before for at in range(len(names))] == (
            ~np.isin(np.arange(len(names)), new.positions)
        ).tolist()
        self.waiting[self.batches] = (names, step)
        self.last[rank] = (names, step, self.batches, new)

    @precondition(lambda self: self.last)
    @rule(data=st.data(), count=st.integers(1, 3))
    def repeat(self, data, count):
        """The last look-up of a rank is repeated, after any number of others."""
        rank = data.draw(st.sampled_from(sorted(self.last)))
        names, step, _, new = self.last[rank]
        for _ in range(count):
            found = [self.shard.read(0, *arrays(names))]
            values = self.twin.look_up(names, step, False)
            assert found[0][0].tobytes() == encode_rows(values, self.group.wire).tobytes()
        [(rows, again)] = answers_as_before(found, [new])
        assert again is new
        assert not rows[new.rowless].any()

    @rule()
    def go_on_in_another_process(self):
        """The last answers, and the windows of ranks, are those of the previous process; remembered rows are not."""
        windows = windows_of(self.shard.applied)
        del self.shard
        gc.collect()
        self.shard, repairs = attach(self.file, self.layout, 0, 1, 2)
        assert repairs.request is None
        assert windows_of(self.shard.applied) == windows
        for rank, (_, step, _, new) in self.last.items():
            found = self.shard.answers.last(rank)
            assert found is not None
            assert found[0] == step
            assert [each.tolist() for each in found[1][0]] == [each.tolist() for each in new]

    train_on_many_small_batches = None
    """Hundreds of requests that `Life` makes of a shard in memory."""

    def insert(self, places, seed):
        super().insert(places, seed)
        self.shard.serve()


KeptLife.TestCase.settings = settings(max_examples=4, stateful_step_count=20)
TestKeptLife = KeptLife.TestCase
