"""The ids with a row if not all can have one: by their look-ups, and by the age of rows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.errors import CheckpointError
from persia_cli.store.checkpoints.frequency_files import frequencies_of, load_frequencies
from persia_cli.store.checkpoints.row_files import load_shard
from persia_cli.store.layout import partition_owners
from persia_cli.store.shard import Shard
from tests.support.saving import portions_of, save_shard
from tests.support.shards import SGD, TABLES, arrays, find_rows, layout_of
from tests.unit.store.test_snapshot import alone

ONE = TABLES[:1]


def layout(capacity=1000, partitions=1, epoch_bits=20, **settings):
    return layout_of(1, capacity, partitions, SGD, ONE, epoch_bits=epoch_bits, **settings)


def keys_by_chance(count, seed=0):
    return np.random.default_rng(seed).integers(2**64, size=count, dtype=np.uint64)


def look_up(shard, keys, step):
    """Look keys of table 0 up in training; return True for those that had no row before."""
    return shard.look_up_batch([(keys, np.zeros(keys.size, np.uint16))], step, 0, None)[0][1].positions


def have_rows(shard, keys):
    return find_rows(shard.stores[0], keys, np.zeros(keys.size, np.uint16)) >= 0


def counters(shard):
    return shard.counters()["user"]


@pytest.mark.parametrize("least", [1, 2, 3, 7])
def test_an_id_gets_a_row_at_the_sighting_that_is_asked_for(least):
    shard, keys = Shard(layout(min_count=least), 0, 1), keys_by_chance(10)
    for step in range(least):
        assert not have_rows(shard, keys).any()
        assert look_up(shard, keys, step).size == keys.size
    assert have_rows(shard, keys).all()
    assert (counters(shard).not_admitted, counters(shard).admitted) == ((least - 1) * keys.size, keys.size)


def test_many_ids_are_rarely_counted_too_often_and_never_too_rarely():
    shard, keys = Shard(layout(min_count=2), 0, 1), keys_by_chance(2000)
    look_up(shard, keys, 0)
    assert have_rows(shard, keys).mean() < 0.1
    look_up(shard, keys[:500], 1)
    assert have_rows(shard, keys[:500]).all()


def test_ids_that_come_once_never_push_out_those_that_come_again():
    lfu = Shard(layout(300, when_full="evict_lfu"), 0, 1)
    lru = Shard(layout(300, when_full="evict_lru"), 0, 1)
    often = keys_by_chance(200)
    for step in range(1, 41):
        for shard in (lfu, lru):
            # The step before was the last use of the frequent ones: by age alone the newcomers win.
            look_up(shard, often if step % 2 else keys_by_chance(400, step), step)
    kept = [have_rows(shard, often).mean() for shard in (lfu, lru)]
    # Some newcomers have counters in common with others, so they seem to be repeated.
    assert kept[0] > 0.9 > kept[1] + 0.2, kept
    assert counters(lfu).refused > 5000


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from(["evict_lfu", "refuse"]), st.integers(1, 3))
def test_ids_with_a_row_do_not_depend_on_the_number_of_servers(seed, servers, when_full, least):
    of = layout(200, 4, epoch_bits=2, when_full=when_full, min_count=least, expire_after=9)
    one, several = Shard(of, 0, 1), [Shard(of, server, servers) for server in range(servers)]
    owners, rng = partition_owners(4, servers), np.random.default_rng(seed)
    keys = keys_by_chance(600, seed)
    for step in range(12):
        batch = np.unique(keys[rng.zipf(1.3, 300) % keys.size])
        look_up(one, batch, step)
        for server, shard in enumerate(several):
            own = batch[owners[(batch >> np.uint64(32)) * np.uint64(4) >> np.uint64(32)] == server]
            look_up(shard, own, step)
    sketches = [shard.stores[0].index.sketch for shard in several]
    assert np.array_equal(np.concatenate(sketches), one.stores[0].index.sketch)
    assert counters(one).rows == sum(counters(shard).rows for shard in several)


def trained(of, steps=10):
    shard, keys, rng = Shard(of, 0, 1), keys_by_chance(3000), np.random.default_rng(1)
    for step in range(steps):
        look_up(shard, np.unique(keys[rng.zipf(1.2, 800) % keys.size]), step)
    return shard


class Saved:
    """The part of a manifest that `load_frequencies` reads."""

    def __init__(self, files):
        self.files = files


def saved(shard, folder):
    """Save a shard, with its counts; its files of rows and of counts."""
    files = save_shard(shard, folder / "embeddings")
    return [file for file in files if file.rows], [file for file in files if not file.rows]


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("others", [1, 2])
def test_counts_come_back_to_the_bit_on_any_number_of_servers(tmp_path, servers, others):
    of = layout(500, 4, epoch_bits=2, when_full="evict_lfu", min_count=2)
    shard = trained(of)
    files = saved(shard, tmp_path / "first")
    middle = []
    for server in range(others):
        each = Shard(of, server, others)
        load_shard(each, alone(tmp_path / "first" / "embeddings", files[0]))
        load_frequencies(each, tmp_path / "first", Saved(files[1]))
        middle.append(saved(each, tmp_path / f"second-{server}"))
    for server in range(servers):
        last = Shard(of, server, servers)
        for number, (rows, counts) in enumerate(middle):
            folder = tmp_path / f"second-{number}"
            load_shard(last, alone(folder / "embeddings", rows))
            load_frequencies(last, folder, Saved(counts))
        store, whole = last.stores[0], shard.stores[0]
        words = of.groups[0].sketch_lines * 8
        own = whole.index.sketch[store.partitions.start * words : store.partitions.stop * words]
        # The epoch of a line without counts is irrelevant.
        theirs, ours = (each.reshape(-1, 8) for each in (own, store.index.sketch))
        filled = theirs[:, 1:].any(axis=1)
        assert np.array_equal(ours[filled], theirs[filled])
        assert not ours[~filled, 1:].any()
        keys = keys_by_chance(3000)
        mine = keys[np.isin((keys >> np.uint64(32)) * np.uint64(4) >> np.uint64(32), list(store.partitions))]
        mine = mine[have_rows(shard, mine)]
        rows, before = (
            find_rows(each.stores[0], *arrays([(key, 0) for key in mine.tolist()])) for each in (last, shard)
        )
        counts, wanted = store.index.uses[rows], whole.index.uses[before]
        for step in (10, 12, 20):
            steps = np.full(counts.size, step, np.uint32)
            assert np.array_equal(*(frequencies_of(words, steps, 2) for words in (counts, wanted)))
        assert frequencies_of(counts, np.full(counts.size, 10, np.uint32), 2).max(initial=2) > 1


def sees(shard, key):
    """Look a key up once more, which is not enough for a row."""
    look_up(shard, key[None], 10)


@pytest.mark.parametrize("capacity", [100, 500, 2000])
def test_another_capacity_never_counts_less(tmp_path, capacity):
    of = layout(500, 4, epoch_bits=2, min_count=9)
    _, files = saved(trained(of), tmp_path)
    other = Shard(layout(capacity, 2, epoch_bits=2, min_count=9), 0, 1)
    load_frequencies(other, tmp_path, Saved(files))
    before, after, keys = trained(of), other, keys_by_chance(30)
    for key in keys:
        counts = []
        for shard in (before, after):
            needed = next(times for times in range(20) if have_rows(shard, key[None])[0] or sees(shard, key))
            counts.append(needed)
        assert counts[1] <= counts[0]


def test_a_damaged_file_of_counts_is_refused(tmp_path):
    shard = trained(layout(500, 4, min_count=2))
    _, files = saved(shard, tmp_path)
    path = tmp_path / "frequencies" / files[0].name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="has changed since it was saved"):
        load_frequencies(Shard(shard.layout, 0, 1), tmp_path, Saved(files))
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_frequencies(Shard(shard.layout, 0, 1), tmp_path, Saved(files))


@pytest.mark.parametrize("when_full", ["evict_lru", "refuse"])
def test_policies_without_counts_have_no_memory_for_them(when_full, tmp_path):
    shard = trained(layout(500, 4, when_full=when_full))
    assert (shard.stores[0].index.uses.size, shard.stores[0].index.sketch.size) == (0, 0)
    assert saved(shard, tmp_path)[1] == []


@pytest.mark.parametrize("places", [1, 7, 5000])
def test_a_cut_has_the_old_sketch_while_every_line_changes(places, monkeypatch):
    monkeypatch.setattr("persia_cli.store.snapshot.PORTION_BYTES", 1000)
    shard = trained(layout(5000, 64, epoch_bits=2, when_full="evict_lfu", min_count=2))
    before, lines = shard.stores[0].index.sketch.copy(), []
    cut, step, keys = shard.begin_snapshot(cells=places), 10, keys_by_chance(100_000)[3000:]
    cut.make_space = lambda: lines.append(cut.next_portion()[1].lines)
    while not cut.over:
        look_up(shard, keys[step * 40 :][:40], step)
        if not cut.over:
            cut.make_space()
        step += 1
    assert len(lines) > 20
    assert (cut.pauses == 0) == (places == 5000)
    assert np.array_equal(np.concatenate(lines), before)
    assert not np.array_equal(shard.stores[0].index.sketch, before)


def test_loaded_counts_are_saved_again_even_with_few_rows(tmp_path):
    shard = Shard(layout(100, epoch_bits=4, when_full="evict_lfu"), 0, 1)
    look_up(shard, keys_by_chance(300), 0)
    _, files = saved(shard, tmp_path)
    other = Shard(layout(1000, epoch_bits=4, when_full="evict_lfu"), 0, 1)
    load_frequencies(other, tmp_path, Saved(files))
    sketch = other.stores[0].index.sketch
    assert sketch.any()
    cut = other.begin_snapshot(cells=500)
    assert np.array_equal(np.concatenate([portion.lines for portion in portions_of(cut)(0)]), sketch)


def test_a_step_far_behind_or_ahead_does_no_harm():
    of = replace(layout(50, 1, epoch_bits=0, when_full="evict_lfu"), expire_after=5)
    shard, keys = Shard(of, 0, 1), keys_by_chance(300)
    for step in (0, 2**32 - 1, 3, 2**24, 2**24 - 1, 2**23 + 1, 2**31, 7):
        look_up(shard, keys[step % 7 :], step)
    assert counters(shard).rows <= 50
