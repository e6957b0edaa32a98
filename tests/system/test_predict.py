"""`persia predict` scores what `persia eval` evaluates, to the bit, in the order of the data, and changes nothing."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from persia_cli.engines.job import JobResult
from persia_cli.errors import DataError, UserError
from persia_cli.main import app
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.roles.nn_worker.interval import Interval
from tests.support.jobs import train
from tests.support.lists import EVAL_ROWS, lists_job
from tests.support.printed import key_values

BATCH = 32
LABELS = ("click", "buy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the data of the trained run."""
    return tmp_path_factory.mktemp("predict")


@pytest.fixture(scope="module")
def saved(folder: Path) -> JobResult:
    """A trained run of two labels, saved from two servers."""
    return train([*lists_job(folder), "cluster.embedding_servers=2"], folder / "run")


@pytest.fixture(scope="module")
def unlabelled(folder: Path, saved: JobResult) -> Path:
    """The evaluation samples without labels and weights, but with names, in two files of several row groups."""
    rows = pq.read_table(folder / "eval.parquet").drop_columns([*LABELS, "weight"])
    rows = rows.append_column("name", pa.array([f"row {n}" for n in range(EVAL_ROWS)]))
    data = folder / "unlabelled"
    data.mkdir()
    for name, first, last in (("1", 0, 20), ("2", 20, EVAL_ROWS)):
        pq.write_table(rows.slice(first, last - first), data / f"{name}.parquet", row_group_size=11)
    return data


def predict(run_dir: Path, data: Path | str, output: Path, *words: str) -> Result:
    """Run `persia predict`."""
    return CliRunner().invoke(app, ["predict", str(run_dir), str(data), "-o", str(output), *words])


def logits_of(path: Path) -> np.ndarray[Any, Any]:
    """The logits in a file of scores, [rows, labels]."""
    scores = pq.read_table(path)
    return np.stack([scores.column(f"{label}_logit").to_numpy() for label in LABELS], axis=1)


def test_scores_are_those_of_evaluation_to_the_bit(
    saved: JobResult, folder: Path, unlabelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same samples in the same steps: the forward pass of both is one and the same."""
    heard: list[np.ndarray[Any, Any]] = []
    add = Interval.add

    def note(self: Interval, samples: Any, scored: Any, *others: Any) -> None:
        heard.append(scored.logits.copy())
        add(self, samples, scored, *others)

    monkeypatch.setattr(Interval, "add", note)
    told = CliRunner().invoke(app, ["eval", str(saved.run_dir), "--data", str(folder / "eval.parquet")])
    assert told.exit_code == 0, told.stderr
    monkeypatch.undo()

    result = predict(saved.run_dir, unlabelled, tmp_path / "s.parquet", "--keep", "name", "--logits")
    assert result.exit_code == 0, result.stderr
    scores = pq.read_table(tmp_path / "s.parquet")
    assert scores.column("name").to_pylist() == [f"row {n}" for n in range(EVAL_ROWS)]
    logits = logits_of(tmp_path / "s.parquet")
    assert logits.tobytes() == np.concatenate(heard).tobytes()

    truth = pq.read_table(folder / "eval.parquet")
    labels = np.stack([truth.column(label).to_numpy().astype(np.float32) for label in LABELS], axis=1)
    histogram = ScoreHistogram(len(LABELS))
    for first in range(0, EVAL_ROWS, BATCH):
        part = slice(first, first + BATCH)
        histogram.add(logits[part], labels[part], truth.column("weight").to_numpy()[part])
    printed = key_values(told.stdout)
    for task, label in enumerate(LABELS):
        assert printed[f"auc_{label}"] == repr(histogram.auc(task))
        assert printed[f"log_loss_{label}"] == repr(histogram.log_loss(task))


def test_any_number_of_servers_workers_and_loaders_gives_the_same_bits(
    saved: JobResult, unlabelled: Path, tmp_path: Path
) -> None:
    words = ["cluster.embedding_servers=3", "cluster.embedding_workers=2", "cluster.data_loaders=2"]
    for name, own in (("one", []), ("many", words)):
        assert predict(saved.run_dir, unlabelled, tmp_path / f"{name}.parquet", "--logits", *own).exit_code == 0
    assert logits_of(tmp_path / "one.parquet").tobytes() == logits_of(tmp_path / "many.parquet").tobytes()


def test_ids_that_were_never_seen_are_zeros_and_stay_unknown(
    saved: JobResult, folder: Path, unlabelled: Path, tmp_path: Path
) -> None:
    rows = pq.read_table(unlabelled / "1.parquet")
    place = rows.schema.get_field_index("user")
    strangers = rows.set_column(place, "user", pa.array(np.arange(10_000, 10_000 + rows.num_rows)))
    pq.write_table(strangers, tmp_path / "strangers.parquet")
    result = predict(saved.run_dir, tmp_path / "strangers.parquet", tmp_path / "s.csv", "--keep", "name")
    assert result.exit_code == 0, result.stderr
    printed = key_values(result.stdout)
    assert (printed["rows"], len(Path(tmp_path / "s.csv").read_text().splitlines())) == ("20", 21)
    assert 0.0 < float(printed["p1_buy"]) <= float(printed["median_buy"]) <= float(printed["p99_buy"]) < 1.0
    before, after = counters(saved.run_dir), counters(newest(saved.run_dir / "predictions"))
    assert {name: table["rows"] for name, table in after.items()} == {
        name: table["rows"] for name, table in before.items()
    }
    assert all(table["admitted"] == table["evicted"] == 0 for table in after.values())


def newest(folder: Path) -> Path:
    return max(folder.iterdir())


def counters(run_dir: Path) -> dict[str, dict[str, int]]:
    """Return the counters of the embedding servers, by table."""
    return next(event["tables"] for event in read_journal(run_dir / EVENTS) if event["event"] == "tables")


@pytest.mark.slow
@pytest.mark.processes
def test_several_ranks_in_processes_keep_the_order(saved: JobResult, unlabelled: Path, tmp_path: Path) -> None:
    """Ranks compute in smaller portions, which may round otherwise in the last bits."""
    assert predict(saved.run_dir, unlabelled, tmp_path / "one.parquet", "--logits").exit_code == 0
    words = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2"]
    result = predict(saved.run_dir, unlabelled, tmp_path / "two.parquet", "--logits", "--keep", "name", *words)
    assert result.exit_code == 0, result.stderr
    names = pq.read_table(tmp_path / "two.parquet").column("name").to_pylist()
    assert names == [f"row {n}" for n in range(EVAL_ROWS)]
    one, two = logits_of(tmp_path / "one.parquet"), logits_of(tmp_path / "two.parquet")
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.parquet", "two.parquet"]


def test_no_samples_give_no_scores(saved: JobResult, unlabelled: Path, tmp_path: Path) -> None:
    pq.write_table(pq.read_table(unlabelled / "1.parquet").slice(0, 0), tmp_path / "none.parquet")
    result = predict(saved.run_dir, tmp_path / "none.parquet", tmp_path / "s.parquet", "--keep", "name")
    assert result.exit_code == 0, result.stderr
    written = pq.read_table(tmp_path / "s.parquet")
    assert written.column_names == ["name", "click_probability", "buy_probability"]
    assert written.num_rows == 0


def test_an_existing_file_stays_unless_replacing_is_requested(
    saved: JobResult, unlabelled: Path, tmp_path: Path
) -> None:
    output = tmp_path / "s.parquet"
    output.write_text("of old")
    error = predict(saved.run_dir, unlabelled, output).exception
    assert isinstance(error, UserError)
    assert str(error) == f"{output} exists already; choose another name, or replace it with --overwrite"
    assert output.read_text() == "of old"
    assert predict(saved.run_dir, unlabelled, output, "--overwrite").exit_code == 0
    assert pq.read_table(output).num_rows == EVAL_ROWS


@pytest.mark.parametrize(
    ("data", "output", "words", "sentence"),
    [
        ("unlabelled", "s.parquet", ["--keep", "nmae"], "there is no column nmae to keep; did you mean name?"),
        ("unlabelled", "none/s.parquet", [], "there is no folder"),
        ("unlabelled", "s.txt", [], "end the name in .parquet or .csv"),
        ("unlabelled", "s.csv", ["--keep", "tags"], "column tags is list<"),
        ("nowhere", "s.parquet", ["dataset.recipe=avazu"], "does not exist; correct"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(
    saved: JobResult, folder: Path, unlabelled: Path, tmp_path: Path, data: str, output: str, words: list[str],
    sentence: str,
) -> None:  # fmt: skip
    done = set((saved.run_dir / "predictions").glob("*"))
    error = predict(saved.run_dir, folder / data, tmp_path / output, *words).exception
    assert isinstance(error, UserError)
    assert sentence in str(error)
    assert "recipe prepare" not in str(error)
    assert list(tmp_path.iterdir()) == []
    assert set((saved.run_dir / "predictions").glob("*")) == done


def test_a_missing_feature_is_named(saved: JobResult, unlabelled: Path, tmp_path: Path) -> None:
    pq.write_table(pq.read_table(unlabelled / "1.parquet").drop_columns("user"), tmp_path / "s.parquet")
    error = predict(saved.run_dir, tmp_path / "s.parquet", tmp_path / "o.parquet").exception
    assert isinstance(error, DataError)
    assert "there is no column user" in str(error)


def test_scores_may_not_lie_among_the_data(saved: JobResult, unlabelled: Path) -> None:
    error = predict(saved.run_dir, unlabelled, unlabelled / "s.parquet").exception
    assert isinstance(error, UserError)
    assert "is among the data" in str(error)


def test_a_prediction_that_fails_leaves_no_file(saved: JobResult, unlabelled: Path, tmp_path: Path) -> None:
    rows = pq.read_table(unlabelled / "1.parquet")
    place = rows.schema.get_field_index("d1")
    values = [float("nan") if n == 15 else 0.5 for n in range(rows.num_rows)]
    pq.write_table(rows.set_column(place, "d1", pa.array(values, pa.float32())), tmp_path / "bad.parquet")
    error = predict(saved.run_dir, tmp_path / "bad.parquet", tmp_path / "s.parquet").exception
    assert isinstance(error, UserError)
    assert "values of dense column d1 are unusable" in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.parquet"]
    assert threading.active_count() < 50
