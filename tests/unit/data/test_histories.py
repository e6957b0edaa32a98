"""Histories of samples, from stores of events: equal to a brute-force join, at every time, for every kind of column."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.config.schema import ParquetDataset, PredictSplit
from persia_cli.data.read import events as event_module
from persia_cli.data.read.cache import CACHE
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.ids import text_id
from persia_cli.errors import DataError
from persia_cli.plan.job import plan_job
from tests.support.runs import make_run
from tests.support.samples import ids_by_sample, read, same

LENGTH = 5
READ = {"name": "watched.movie", "table": "movie", "pooling": "none"}


pytestmark = pytest.mark.usefixtures("cache")


def described(path: Path, **changes: Any) -> ParquetDataset:
    history = {"user": "user", "time": "ts", "columns": ["movie"], "max_length": LENGTH}
    values = {
        "kind": "parquet",
        "path": str(path),
        "labels": ["liked"],
        "sparse": ["user", "movie", READ],
        "histories": {"watched": history | changes.pop("history", {})},
        "split": {"kind": "every", "n": 5},
        "shuffle": False,
    }
    return ParquetDataset.model_validate(values | changes)


def made_up(rows: int, users: int = 20, times: int = 40, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "user": rng.integers(0, users, rows),
        "ts": rng.integers(0, times, rows),
        "movie": rng.integers(1, 1000, rows),
        "liked": rng.integers(0, 2, rows),
    }


def written(folder: Path, columns: dict[str, Any], files: int = 2) -> Path:
    folder.mkdir(exist_ok=True)
    table = pa.table(columns)
    size = -(-table.num_rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * size, size), folder / f"part-{number}.parquet", row_group_size=997)
    return folder


def histories(dataset: ParquetDataset, split: Any = "train") -> list[list[int]]:
    return [sample[-1] for sample in ids_by_sample(read(dataset, split))]


def joined(columns: dict[str, Any], rows: Any, in_order: bool = False) -> list[list[int]]:
    """Return the histories of rows by comparing each with every event."""
    user, ts, movie = (np.asarray(columns[name]) for name in ("user", "ts", "movie"))
    found = []
    for row in rows:
        earlier = (ts < ts[row]) | (in_order & (ts == ts[row]) & (np.arange(ts.size) < row))
        mine = np.flatnonzero((user == user[row]) & earlier)
        found.append(movie[mine[np.argsort(ts[mine], kind="stable")]][-LENGTH:].tolist())
    return found


@pytest.mark.parametrize("ties", ["strict", "file_order"])
def test_histories_equal_a_join(tmp_path: Path, ties: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = made_up(3000)
    dataset = described(written(tmp_path / "events", columns), history={"ties": ties})
    rows = np.arange(3000)
    for split, wanted in (("train", rows[rows % 5 != 0]), ("eval", rows[rows % 5 == 0])):
        assert histories(dataset, split) == joined(columns, wanted, ties == "file_order")
    # Events that do not fit into memory are sorted in partitions, to the same store.
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(event_module, "_PARTITION_BYTES", 8192)
    assert histories(dataset) == joined(columns, rows[rows % 5 != 0], ties == "file_order")
    assert [path.suffix for path in (tmp_path / "cache/text").iterdir()] == [".events"]


@pytest.mark.slow
def test_a_million_events_equal_a_sorted_join(tmp_path: Path) -> None:
    columns = made_up(10**6, users=5000, times=300)
    dataset = described(written(tmp_path / "events", columns), split={"kind": "every", "n": 2})
    rows = np.arange(0, 10**6, 199)[1::2]  # odd numbers, which train
    lists = read(dataset).lists[2]
    user, ts, movie = columns["user"], columns["ts"], columns["movie"]
    order = np.lexsort((ts, user))
    for row in rows:
        ids = lists[0][lists[1][row // 2] : lists[1][row // 2 + 1]]
        first, last = np.searchsorted(user[order], [user[row], user[row] + 1])
        mine = order[first:last]
        np.testing.assert_array_equal(ids, movie[mine[ts[mine] < ts[row]]][-LENGTH:])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), min_size=5, max_size=40))
def test_no_event_at_or_after_the_time_of_a_sample_enters(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("events")
    users, times = map(list, zip(*pairs, strict=True))
    # Each event's id is its row and so tells its time.
    columns = {"user": users, "ts": times, "movie": range(len(pairs)), "liked": [1] * len(pairs)}
    dataset = described(written(folder, columns, 1), split={"kind": "every", "n": 99, "offset": 98})
    for row, ids in enumerate(histories(dataset)):
        assert all(users[i] == users[row] and times[i] < times[row] for i in ids)
        earlier = sum(user == users[row] and time < times[row] for user, time in pairs)
        assert len(ids) == min(earlier, LENGTH)


def test_events_of_other_files_have_texts_and_times_and_may_lack_a_user_or_a_time(tmp_path: Path) -> None:
    days = ["2024-01-01", "2024-01-03", None, "2024-01-02", "2024-01-04"]
    events = {"user": ["ann", "ann", "ann", None, "bob"], "ts": days, "movie": ["a", "b", "c", "d", "e"]}
    samples = {
        "user": ["ann", "ann", "bob", "eve", None],
        "ts": [*("2024-01-03T00:00:00", "2024-02-01"), *["2024-02-01"] * 3],
    }
    samples |= {"movie": ["a"] * 5, "liked": [1, 0, 1, 0, 1]}
    path = written(tmp_path / "samples", samples, 1)
    (tmp_path / "events").mkdir()
    pq.write_table(pa.table(events), tmp_path / "events/one.parquet")
    short = {"name": "recent", "column": "watched.movie", "table": "movie", "pooling": "mean", "max_length": 1}
    lists = {"name": "watched.movie", "table": "movie", "pooling": "none"}
    dataset = described(path, history={"path": str(tmp_path / "events")}, sparse=["user", "movie", lists, short],
                        split={"kind": "every", "n": 9, "offset": 8})  # fmt: skip
    a, b, e = (text_id("movie", text) for text in "abe")
    found = ids_by_sample(read(dataset))
    assert [sample[2:] for sample in found] == [[[a], [a]], [[a, b], [b]], [[e], [e]], [[], []], [[], []]]
    facts = inspect(dataset)
    assert "3 events of 2 users in watched (2 without a user, a time or an id left out)" in facts.source
    assert facts.settled is not None
    assert facts.settled.sparse[2].ids == "text"
    assert facts.settled.histories["watched"].path == str(tmp_path / "events")


def test_histories_reach_back_from_other_samples_into_the_events_of_training(tmp_path: Path) -> None:
    columns = made_up(300)
    trained = inspect(described(written(tmp_path / "events", columns))).settled
    assert trained is not None
    later = {"user": [3, 4], "ts": [99, 99], "movie": [1, 1]}
    scored = {"path": str(written(tmp_path / "new", later, 1)), "split": PredictSplit(kind="predict")}
    whole = {name: np.append(values, later[name]) for name, values in columns.items() if name in later}
    assert histories(trained.model_copy(update=scored), "eval") == joined(whole, [300, 301])
    # Lists that the samples have themselves, as logs of served requests do, are kept.
    logged = {"user": [3, 4], "movie": [1, 1], "watched.movie": [[7, 8], []]}
    ready = scored | {"path": str(written(tmp_path / "log", logged, 1))}
    assert histories(trained.model_copy(update=ready), "eval") == [[7, 8], []]


def test_samples_are_as_with_ready_lists(tmp_path: Path) -> None:
    columns = made_up(2000)
    dataset = described(written(tmp_path / "events", columns), shuffle=True)
    ready = columns | {"last": joined(columns, range(2000))}
    lists = {"name": "watched.movie", "column": "last", "table": "movie", "pooling": "none", "max_length": LENGTH}
    other = described(written(tmp_path / "ready", ready), histories={}, sparse=["user", "movie", lists], shuffle=True)
    for split in ("train", "eval"):
        same(read(dataset, split, seed=3, epoch=1), read(other, split, seed=3, epoch=1))


@pytest.mark.parametrize("name", ["dense", "single"])
def test_a_history_has_any_name(tmp_path: Path, name: str) -> None:
    columns = made_up(300) | {"price": np.arange(300) * 0.01}
    path = written(tmp_path / "events", columns)
    lists = {"name": f"{name}.movie", "table": "movie", "pooling": "none"}
    history = {"user": "user", "time": "ts", "columns": ["movie"], "max_length": LENGTH}
    other = described(path, histories={name: history}, sparse=["user", "movie", lists], dense=["price"])
    same(read(other), read(described(path, dense=["price"])))


def test_other_events_are_other_data(tmp_path: Path) -> None:
    columns = made_up(300)
    events = written(tmp_path / "events", columns)
    dataset = described(written(tmp_path / "samples", columns), history={"path": str(events)})
    before = inspect(dataset).train_data
    copies = described(tmp_path / "samples", history={"path": str(written(tmp_path / "copies", columns))})
    assert inspect(copies).train_data == before
    written(events, columns | {"movie": columns["movie"][::-1]})
    assert inspect(dataset).train_data != before


@pytest.mark.parametrize(
    ("samples", "events", "changes", "text"),
    [
        ({}, {"movie": None}, {}, "there is no column movie (sparse column of dataset.histories.watched.columns)"),
        ({}, {"movie": [[1], [2], [3]]}, {}, "column movie holds lists, and an event has one id"),
        ({"ts": None}, {}, {}, "there is no column ts (time column of dataset.histories.watched.time)"),
        ({}, {"ts": ["2024-01-01"] * 3}, {}, "holds times in the events and numbers in the samples"),
        ({}, {"user": ["a", "b", "c"]}, {}, "column user holds strings in the events and numbers in the samples"),
        ({}, {"user": [1.5, 2, 3]}, {}, "1.5 is not a whole number in row 0 of column user, the user of a history"),
        ({}, {"ts": pa.nulls(3, pa.int64())}, {}, "no event has all of user, ts, movie"),
        ({}, {"user": [], "ts": [], "movie": []}, {}, "the files hold no rows"),
        ({}, {}, {"sparse": ["movie", "watched.film"]}, "reads column film of history watched, which has movie"),
        ({}, {}, {"sparse": ["movie"]}, "no sparse feature reads history watched"),
        ({}, {}, {"samples": {"kind": "windows", "of": "seen"}}, "there is no history seen"),
        ({}, {}, {"samples": {"kind": "windows", "of": "watched"}}, "correct dataset.histories.watched.path"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_history_is_refused(
    tmp_path: Path, samples: dict[str, Any], events: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    plain = {"user": [1, 2, 3], "ts": [1, 2, 3], "movie": [1, 2, 3]}
    given = ({"liked": [0, 1, 1]} | plain | samples, plain | events)
    paths = []
    for name, columns in zip(("samples", "events"), given, strict=True):
        kept = {key: values for key, values in columns.items() if values is not None}
        paths.append(written(tmp_path / name, kept, 1))
    with pytest.raises((DataError, ValueError)) as error:
        inspect(described(paths[0], history={"path": str(paths[1])}, **changes))
    assert text in str(error.value)


def test_samples_without_earlier_events_are_reported(tmp_path: Path) -> None:
    columns = {"user": range(100), "ts": [1] * 100, "movie": range(100), "liked": [0, 1] * 50}
    warnings = inspect(described(written(tmp_path / "events", columns))).warnings
    assert any("100% of the training samples have no earlier event in history watched" in text for text in warnings)


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        ([[], [], [1]] * 30, {}),
        (["", None, "1|2"] * 30, {"separator": "|"}),
        ([[9, 9], [9, 9], [1, 9]] * 30, {"padding": 9}),
    ],
    ids=["lists", "texts", "padded"],
)
def test_samples_with_empty_lists_are_reported(column: list[Any], changes: dict[str, Any], tmp_path: Path) -> None:
    columns = {"user": range(90), "movie": range(90), "liked": [0, 1] * 45, "last": column}
    last = {"name": "last", "table": "movie", "pooling": "none", "max_length": 5} | changes
    path = written(tmp_path / "rows", columns)
    warnings = inspect(described(path, sparse=["movie", last], histories={})).warnings
    assert any("66.7% of the training samples have an empty list of last (column last)" in text for text in warnings)


def numbered(rows: int, users: int, seed: int = 0) -> dict[str, Any]:
    """Return events whose item is their row number, so that an item tells which event it is."""
    return made_up(rows, users, times=60, seed=seed) | {"movie": np.arange(rows), "liked": np.ones(rows)}


@pytest.mark.parametrize("test", [False, True])
def test_each_training_event_but_a_users_first_is_a_target_once(tmp_path: Path, test: bool) -> None:
    columns = numbered(2000, 150)
    split = {"kind": "last", "group": "user", "order": "ts", "test": test}
    dataset = described(
        written(tmp_path / "events", columns), split=split, samples={"kind": "windows", "of": "watched"}
    )
    order = np.lexsort((columns["ts"], columns["user"]))
    of_users = [order[columns["user"][order] == user].tolist() for user in range(150)]
    held = 1 + test
    wanted = [events[: max(len(events) - held, 1)] if len(events) > 1 else events for events in of_users]
    targets = []
    for _, (item,), history in ids_by_sample(read(dataset)):
        assert len(history) <= LENGTH
        targets += [*history[1:], item]
        events = wanted[columns["user"][item]]
        assert history == events[: events.index(item)][-LENGTH:]
    assert sorted(targets) == sorted(event for events in wanted for event in events[1:])
    assert len(read(dataset).labels) == sum(-(-(len(events) - 1) // LENGTH) for events in wanted)
    # The newest event, or the one before it, evaluates with what came before.
    for _, (item,), history in ids_by_sample(read(dataset, "eval")):
        events = of_users[columns["user"][item]]
        assert item == events[-held]
        assert history == events[: events.index(item)][-LENGTH:]


def test_windows_do_not_train_on_events_of_the_evaluation(tmp_path: Path) -> None:
    path = written(tmp_path / "events", numbered(300, 5))
    windows = {"kind": "windows", "of": "watched"}
    with pytest.raises(DataError, match=r"dataset\.samples: \d+% of the events of the evaluation, the test"):
        inspect(described(path, samples=windows))
    by_time = described(path, samples=windows, split={"kind": "time", "column": "ts", "eval_from": 50})
    assert inspect(by_time).eval_rows == np.count_nonzero(numbered(300, 5)["ts"] >= 50)
    with pytest.raises(ValueError, match="leave out ties of history watched"):
        described(path, samples=windows, history={"ties": "strict"})


def test_rows_of_no_split_are_no_targets(tmp_path: Path) -> None:
    part = np.where(np.arange(20) < 15, "train", "eval")
    columns = {"user": [1] * 20, "ts": range(20), "movie": range(20), "liked": [1] * 20}
    windows = {"kind": "windows", "of": "watched"}
    split = {"kind": "column", "column": "part", "train": ["train"], "eval": ["eval"]}
    for unused, is_refused in ((3, True), (16, False)):
        part = np.where(np.arange(20) == unused, "none", part)
        path = written(tmp_path / f"{unused}", columns | {"part": part}, 1)
        dataset = described(path, samples=windows, split=split)
        if is_refused:
            with pytest.raises(DataError, match=r"dataset\.samples: \d+% of the events of .* or no split come"):
                inspect(dataset)
            part[unused] = "train"
        else:
            assert (inspect(dataset).unused_rows, inspect(dataset).window_rows) == (1, 12)


def test_events_without_an_id_are_left_out(tmp_path: Path) -> None:
    columns = made_up(300, users=5)
    nulls = np.arange(300) % 3 == 0
    given = columns | {"movie": pa.array(columns["movie"], mask=nulls)}
    dataset = described(written(tmp_path / "events", given))
    assert "(100 without a user, a time or an id left out)" in inspect(dataset).source
    elsewhere = {name: np.where(nulls, 99, values) if name == "user" else values for name, values in columns.items()}
    rows = np.arange(300)[(np.arange(300) % 5 != 0)]
    kept = [sample for sample, row in zip(histories(dataset), rows, strict=True) if not nulls[row]]
    assert kept == joined(elsewhere, rows[~nulls[rows]])


def test_windows_hold_events_of_label_1_alone(tmp_path: Path) -> None:
    columns = numbered(600, 20) | {"liked": np.arange(600) % 4 == 0}
    liked = {name: np.asarray(values)[::4] for name, values in columns.items()}
    windows = {"samples": {"kind": "windows", "of": "watched"}}
    split = {"kind": "time", "column": "ts", "eval_from": 50}
    dataset = described(written(tmp_path / "events", columns), split=split, **windows)
    alone = described(written(tmp_path / "liked", liked), split=split, **windows)
    assert ids_by_sample(read(dataset)) == ids_by_sample(read(alone))
    assert "(450 whose label is not 1 left out)" in inspect(dataset).source
    trained = np.count_nonzero(columns["ts"] < 50) - np.count_nonzero(liked["ts"] < 50)
    assert inspect(dataset).unused_rows == trained


def test_copies_of_files_have_equal_samples(tmp_path: Path) -> None:
    columns = {"user": [1] * 8, "ts": [5] * 8, "movie": range(8), "liked": [1] * 8}
    path, copies = written(tmp_path / "events", columns), written(tmp_path / "copies", columns)
    (tmp_path / "link").symlink_to(path)
    windows = {"kind": "windows", "of": "watched"}
    split = {"kind": "last", "group": "user", "order": "ts"}
    for changes in ({"history": {"ties": "file_order"}}, {"samples": windows, "split": split}):
        one = described(path, **changes)
        for other in (tmp_path / "link", copies):
            history = changes.get("history", {}) | {"path": str(other)}
            same(read(described(path, **changes | {"history": history})), read(one))
    written(tmp_path / "events", columns | {"user": [2] * 8}, 1)
    with pytest.raises(DataError, match=r"7 training rows are not in the files of history watched; leave out .*\.path"):
        inspect(described(path, samples=windows, split=split, history={"path": str(copies)}))


@pytest.mark.parametrize(
    ("split", "refused"),
    [
        ({"kind": "hash", "eval_fraction": 0.2}, True),
        ({"kind": "every", "n": 5}, True),
        ({"kind": "column", "column": "even", "eval": [True]}, True),
        ({"kind": "column", "column": "late", "eval": [True]}, False),
        ({"kind": "time", "column": "ts", "eval_fraction": 0.2}, False),
        ({"kind": "last", "group": "user", "order": "ts"}, False),
        ({"kind": "last", "group": "user", "order": "row"}, True),
    ],
)
def test_all_positions_learn_from_no_event_of_the_evaluation(
    tmp_path: Path, split: dict[str, Any], refused: bool
) -> None:
    columns = made_up(300) | {"row": np.arange(300)}
    path = written(tmp_path / "events", columns | {"late": columns["ts"] >= 20, "even": columns["row"] % 2 == 0})
    model = {"kind": "sasrec", "dim": 8, "attend": {"movie": ["watched.movie"]}, "layers": 1, "heads": 1}
    for positions in ("all", "last"):
        loss = {"kind": "sampled_softmax", "positions": positions}
        keys = described(path, split=split).model_dump() | {"sparse": ["movie", READ]}
        run = make_run(model=model, dataset=keys, train={"batch_size": 32, "losses": {"liked": loss}})
        is_wrong = refused and positions == "all"
        sentence = r"dataset\.histories\.watched: \d+% of the events of the evaluation, the test or no split come"
        with pytest.raises(DataError, match=sentence) if is_wrong else nullcontext():
            plan_job(run, inspect(run.dataset), "train", tmp_path / "run")


def test_files_make_the_split_of_windows(tmp_path: Path) -> None:
    columns = {"user": [1] * 8, "ts": [1, 1, 2, 2, 3, 3, 4, 4], "movie": range(8), "liked": [1] * 8}
    folder = written(tmp_path / "events", columns)
    (folder / "part-0.parquet").rename(folder / "z.parquet")
    (folder / "part-1.parquet").rename(folder / "a.parquet")
    split = {"kind": "files", "train": ["z.*"], "eval": ["a.*"]}
    dataset = described(folder, split=split, samples={"kind": "windows", "of": "watched"}, history={"max_length": 2})
    assert sorted(sample[1:] for sample in ids_by_sample(read(dataset))) == [[[1], [0]], [[3], [1, 2]]]
    assert [sample[1:] for sample in ids_by_sample(read(dataset, "eval"))][-1] == [[7], [5, 6]]
