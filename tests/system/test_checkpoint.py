"""A saved model evaluates to the same digits on any number of servers, opens in pandas, and is refused when harmed."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from persia_cli.engines.job import result_of
from persia_cli.errors import CheckpointError, UserError
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.support.checkpoints import embedding_files, read_rows
from tests.support.jobs import evaluation, train
from tests.support.lists import STEPS, lists_job


def evaluate(run_dir: Path, *words: str) -> Result:
    """Run `persia eval`."""
    return CliRunner().invoke(app, ["eval", str(run_dir), "--json", *words])


@pytest.mark.parametrize(
    "words",
    [[], ["cluster.embedding_servers=3", "embedding.num_partitions=4", "embedding.capacity=50000"]],
    ids=["same", "other servers and partitions"],
)
def test_evaluation_prints_the_same_digits(lists_run: Path, words: list[str]) -> None:
    result = evaluate(lists_run, *words, "train.calibrate=off")
    assert result.exit_code == 0, result.stderr
    expected = evaluation(result_of(lists_run))
    figures = [f"{name}_{task}" for name in ("auc", "log_loss", "ne", "calibration") for task in ("click", "buy")]
    printed = json.loads(result.stdout)
    assert {name: printed[name] for name in figures} == {name: expected[name] for name in figures}
    assert (printed["step"], printed["rows"]) == (STEPS, expected["rows"])


def test_rows_in_halves_evaluate_to_the_same_digits(tmp_path: Path) -> None:
    halves = ["embedding.dtype=bfloat16", "embedding.wire=float16", "optimizer.embedding.kind=rowwise_adagrad"]
    trained = evaluation(
        train([*lists_job(tmp_path), *halves, "train.epochs=1", "cluster.embedding_servers=2"], tmp_path / "run")
    )
    result = evaluate(tmp_path / "run", "cluster.embedding_servers=3", "train.calibrate=off")
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout)
    assert [printed[key] for key in ("auc_click", "log_loss_buy")] == [trained["auc_click"], trained["log_loss_buy"]]


def test_rows_open_in_pandas(lists: Path) -> None:
    states = {"adagrad": ["adagrad_sum"], "sgd": [], "adam": ["adam_mean", "adam_square"]}
    groups = {
        ("item", "user"): (8, "adagrad"),
        ("tags",): (6, "sgd"),
        ("place",): (4, "adagrad"),
        ("words",): (8, "adam"),
    }
    found, total = set(), 0
    for path in embedding_files(newest_checkpoint(lists / "run" / CHECKPOINTS)):
        rows = pd.read_feather(path)
        tables = tuple(sorted(rows["table"].unique()))
        dim, optimizer = groups[tables]
        assert rows.columns.to_list() == ["table", "id", "last_used", "frequency", "embedding", *states[optimizer]]
        assert [str(rows[name].dtype) for name in ("id", "last_used")] == ["uint64", "int64"]
        assert rows["last_used"].between(0, STEPS - 1).all()
        for column in ["embedding", *states[optimizer]]:
            values = np.stack(rows[column].to_list())
            assert (values.dtype, values.shape) == (np.float32, (len(rows), dim))
        assert not rows.duplicated(["table", "id"]).any()
        found.add(tables)
        total += len(rows)
    assert found == set(groups)
    assert total == evaluation(result_of(lists / "run"))["rows"]


def test_the_manifest_lists_the_files(lists: Path) -> None:
    checkpoint = newest_checkpoint(lists / "run" / CHECKPOINTS)
    assert [path.name for path in sorted(checkpoint.parent.iterdir())] == [f"step-{STEPS}", f"step-{STEPS // 2}"]
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    listed = {(file["folder"], file["name"]): file["nbytes"] for file in manifest["files"]}
    assert listed == {(path.parent.name, path.name): path.stat().st_size for path in checkpoint.glob("*/*")}
    rows = {name: len(saved.ids) for name, saved in read_rows(checkpoint).items()}
    assert {table["name"]: table["rows"] for table in manifest["tables"]} == rows
    assert (manifest["step"], manifest["samples"], manifest["seed"]) == (STEPS, 2 * 138, 3)


def test_the_statistics_of_its_tables(lists: Path) -> None:
    rows = read_rows(newest_checkpoint(lists / "run" / CHECKPOINTS))
    result = CliRunner().invoke(app, ["table", "stats", str(lists / "run"), "--json"])
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["step"], told["tables"].keys()) == (STEPS, rows.keys())
    for name, table in told["tables"].items():
        assert table["rows"] == table["counters"]["rows"] == len(rows[name].ids)
        norms = np.sqrt((rows[name].embedding.astype(np.float64) ** 2).sum(1))
        assert np.histogram(norms, table["norms"]["edges"])[0].tolist() == table["norms"]["counts"]
        assert np.histogram(STEPS - rows[name].last_used, table["ages"]["edges"])[0].tolist() == table["ages"]["counts"]
        assert 0.0 < table["hit_rate"] < 1.0


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("pattern", "harm", "named"),
    [("embeddings/*", flip, "has changed"), ("dense/dense.safetensors", Path.unlink, "is missing")],
)
def test_a_harmed_file_is_named(pattern: str, harm: Callable[[Path], None], named: str, lists_run: Path) -> None:
    path = min(newest_checkpoint(lists_run / CHECKPOINTS).glob(pattern))
    harm(path)
    error = evaluate(lists_run).exception
    assert isinstance(error, UserError)
    assert f"{path} {named}" in str(error)


def test_an_unfinished_checkpoint_is_passed_over(lists_run: Path) -> None:
    last = newest_checkpoint(lists_run / CHECKPOINTS)
    last.rename(last.with_name(f"{last.name}.partial"))
    result = evaluate(lists_run)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["step"] == STEPS // 2
    (newest_checkpoint(lists_run / CHECKPOINTS) / "manifest.json").unlink()
    error = evaluate(lists_run).exception
    assert isinstance(error, CheckpointError)
    assert str(error).startswith(f"{lists_run} has no complete checkpoint")


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("model.dim=16", "model.dim=16: the saved model has 8"),
        ("optimizer.embedding={kind: sgd, lr: 0.1}", "optimizer.embedding.kind=sgd"),
        ("embedding.capacity=10", r"the checkpoint has [\d,]+ rows of .* embedding.capacity a higher value"),
    ],
)
def test_settings_of_another_model_are_refused(word: str, named: str, lists_run: Path) -> None:
    error = evaluate(lists_run, word).exception
    assert isinstance(error, UserError)
    assert re.search(named, str(error))
