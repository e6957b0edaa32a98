"""`persia predict` scores the samples that `persia eval` evaluates, to the bit and in the order of the data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from persia_cli.errors import DataError, UserError
from persia_cli.main import app
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.observe.scores import ScoreHistogram
from tests.support.lists import EVAL_ROWS

BATCH = 32
LABELS = ("click", "buy")


@pytest.fixture
def unlabelled(lists: Path, tmp_path: Path) -> Path:
    """The evaluation samples without labels and weights, but with names, in two files of several row groups."""
    rows = pq.read_table(lists / "eval.parquet").drop_columns([*LABELS, "weight"])
    rows = rows.append_column("name", pa.array([f"row {n}" for n in range(EVAL_ROWS)]))
    data = tmp_path / "unlabelled"
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


def test_scores_have_the_metrics_of_the_evaluation_to_the_bit(
    lists: Path, lists_run: Path, unlabelled: Path, tmp_path: Path
) -> None:
    told = CliRunner().invoke(app, ["eval", str(lists_run), "--json"])
    assert told.exit_code == 0, told.stderr
    result = predict(lists_run, unlabelled, tmp_path / "s.parquet", "--keep", "name", "--logits")
    assert result.exit_code == 0, result.stderr
    scores = pq.read_table(tmp_path / "s.parquet")
    assert scores.column("name").to_pylist() == [f"row {n}" for n in range(EVAL_ROWS)]
    truth, logits = pq.read_table(lists / "eval.parquet"), logits_of(tmp_path / "s.parquet")
    labels = np.stack([truth.column(label).to_numpy().astype(np.float32) for label in LABELS], axis=1)
    histogram = ScoreHistogram(len(LABELS))
    for first in range(0, EVAL_ROWS, BATCH):
        part = slice(first, first + BATCH)
        histogram.add(logits[part], labels[part], truth.column("weight").to_numpy()[part])
    printed = json.loads(told.stdout)
    for task, label in enumerate(LABELS):
        assert printed[f"auc_{label}"] == histogram.auc(task)
        assert printed[f"log_loss_{label}"] == histogram.log_loss(task)
    many = ["cluster.embedding_servers=3", "cluster.embedding_workers=2", "cluster.data_loaders=2"]
    assert predict(lists_run, unlabelled, tmp_path / "many.parquet", "--logits", *many).exit_code == 0
    assert logits_of(tmp_path / "many.parquet").tobytes() == logits.tobytes()


def test_unknown_ids_are_scored_and_add_no_rows(lists_run: Path, unlabelled: Path, tmp_path: Path) -> None:
    rows = pq.read_table(unlabelled / "1.parquet")
    place = rows.schema.get_field_index("user")
    strangers = rows.set_column(place, "user", pa.array(np.arange(10_000, 10_000 + rows.num_rows)))
    pq.write_table(strangers, tmp_path / "strangers.parquet")
    result = predict(lists_run, tmp_path / "strangers.parquet", tmp_path / "s.csv", "--keep", "name")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("20 samples scored ")
    assert len(Path(tmp_path / "s.csv").read_text().splitlines()) == 21
    [predicted] = (lists_run / "predictions").iterdir()
    [scored] = [event for event in read_journal(predicted / EVENTS) if event["event"] == "scored"]
    spread = scored["spread"]["buy"]
    assert 0.0 < spread["p1"] <= spread["median"] <= spread["p99"] < 1.0
    before, after = (
        next(event["tables"] for event in read_journal(run_dir / EVENTS) if event["event"] == "tables")
        for run_dir in (lists_run, predicted)
    )
    assert {name: table["rows"] for name, table in after.items()} == {
        name: table["rows"] for name, table in before.items()
    }


@pytest.mark.slow
def test_several_ranks_in_processes_keep_the_order(lists_run: Path, unlabelled: Path, tmp_path: Path) -> None:
    """Ranks compute in smaller portions, which may round otherwise in the last bits."""
    assert predict(lists_run, unlabelled, tmp_path / "one.parquet", "--logits").exit_code == 0
    words = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2"]
    result = predict(lists_run, unlabelled, tmp_path / "two.parquet", "--logits", "--keep", "name", *words)
    assert result.exit_code == 0, result.stderr
    names = pq.read_table(tmp_path / "two.parquet").column("name").to_pylist()
    assert names == [f"row {n}" for n in range(EVAL_ROWS)]
    one, two = logits_of(tmp_path / "one.parquet"), logits_of(tmp_path / "two.parquet")
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


def test_an_existing_file_is_replaced_only_on_request(lists_run: Path, unlabelled: Path, tmp_path: Path) -> None:
    output = tmp_path / "s.parquet"
    output.write_text("of old")
    error = predict(lists_run, unlabelled, output).exception
    assert isinstance(error, UserError)
    assert f"{output} exists already" in str(error)
    assert output.read_text() == "of old"
    pq.write_table(pq.read_table(unlabelled / "1.parquet").slice(0, 0), tmp_path / "none.parquet")
    assert predict(lists_run, tmp_path / "none.parquet", output, "--overwrite", "--keep", "name").exit_code == 0
    written = pq.read_table(output)
    assert (written.column_names, written.num_rows) == (["name", "click_probability", "buy_probability"], 0)


@pytest.mark.parametrize(
    ("data", "output", "words", "named"),
    [
        ("unlabelled", "s.parquet", ["--keep", "nmae"], "there is no column nmae"),
        ("unlabelled", "none/s.parquet", [], "there is no folder"),
        ("unlabelled", "s.txt", [], "end the name in .parquet or .csv"),
        ("unlabelled", "s.csv", ["--keep", "tags"], "column tags is list<"),
        ("unlabelled", "unlabelled/s.parquet", [], "is among the data"),
        ("nowhere", "s.parquet", [], "does not exist"),
    ],
)
def test_a_mistake_is_named_before_anything_starts(
    lists: Path, unlabelled: Path, tmp_path: Path, data: str, output: str, words: list[str], named: str
) -> None:
    error = predict(lists / "run", tmp_path / data, tmp_path / output, *words).exception
    assert isinstance(error, UserError)
    assert named in str(error)
    assert list(tmp_path.iterdir()) == [unlabelled]


def test_wrong_samples_are_named_and_leave_no_file(lists_run: Path, unlabelled: Path, tmp_path: Path) -> None:
    rows = pq.read_table(unlabelled / "1.parquet")
    values = [float("nan") if n == 15 else 0.5 for n in range(rows.num_rows)]
    wrong = rows.set_column(rows.schema.get_field_index("d1"), "d1", pa.array(values, pa.float32()))
    for table, kind, named in ((rows.drop_columns("user"), DataError, "user"), (wrong, UserError, "dense column d1")):
        pq.write_table(table, tmp_path / "bad.parquet")
        error = predict(lists_run, tmp_path / "bad.parquet", tmp_path / "s.parquet").exception
        assert isinstance(error, kind)
        assert named in str(error)
        assert not list(tmp_path.glob("*s.parquet*"))
