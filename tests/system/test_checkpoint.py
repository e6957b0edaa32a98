"""A saved model evaluates to the same digits on any number of servers, opens in pandas, and is refused when harmed."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from persia_cli.engines.job import JobResult
from persia_cli.errors import CheckpointError, UserError
from persia_cli.main import app
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.store.checkpoints import row_files as snapshot
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.support.checkpoints import embedding_files, read_rows
from tests.support.jobs import CRITEO_FFNN, evaluation, train
from tests.support.lists import STEPS, lists_job
from tests.support.printed import key_values


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """A run that was saved from two servers, halfway and at its end."""
    folder = tmp_path_factory.mktemp("saved")
    return train(
        [
            *lists_job(folder),
            "cluster.embedding_servers=2",
            f"checkpoint.every_steps={STEPS // 2}",
            f"train.steps={STEPS}",
        ],
        folder / "run",
    )


def evaluate(run_dir: Path, *words: str) -> Result:
    """Run `persia eval`."""
    return CliRunner().invoke(app, ["eval", str(run_dir), *words])


@pytest.mark.parametrize(
    "words",
    [
        ["cluster.embedding_servers=1"],
        ["cluster.embedding_servers=2"],
        ["cluster.embedding_servers=3"],
        ["cluster.embedding_servers=3", "embedding.num_partitions=4", "embedding.capacity=50000"],
    ],
)
def test_evaluation_prints_the_same_digits(saved: JobResult, words: list[str]) -> None:
    result = evaluate(saved.run_dir, *words)
    assert result.exit_code == 0, result.stderr
    expected = evaluation(saved)
    figures = [f"{name}_{task}" for name in ("auc", "log_loss", "ne", "calibration") for task in ("click", "buy")]
    printed = key_values(result.stdout)
    assert {name: printed[name] for name in figures} == {name: repr(expected[name]) for name in figures}
    assert (int(printed["step"]), int(printed["rows"])) == (STEPS, expected["rows"])


def test_evaluation_of_real_rows_prints_the_same_digits(criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "cluster=embedded", "train.steps=30"]
    trained = evaluation(train(words, tmp_path / "run"))
    for servers in (1, 3):
        result = evaluate(tmp_path / "run", f"cluster.embedding_servers={servers}")
        assert result.exit_code == 0, result.stderr
        printed = key_values(result.stdout)
        assert [printed["auc"], printed["log_loss"]] == [repr(trained["auc"]), repr(trained["log_loss"])]


@pytest.mark.parametrize(
    ("dtype", "wire", "kind"), [("bfloat16", "float16", "rowwise_adagrad"), ("float16", "bfloat16", "ftrl")]
)
def test_rows_of_halves_evaluate_to_the_same_digits(dtype: str, wire: str, kind: str, tmp_path: Path) -> None:
    embedding = [
        f"embedding.dtype={dtype}",
        f"embedding.wire={wire}",
        f"optimizer.embedding={{kind: {kind}, lr: 0.05}}",
    ]
    trained = evaluation(train([*lists_job(tmp_path), *embedding, "cluster.embedding_servers=2"], tmp_path / "run"))
    for servers in (1, 3):
        result = evaluate(tmp_path / "run", f"cluster.embedding_servers={servers}")
        assert result.exit_code == 0, result.stderr
        printed = key_values(result.stdout)
        assert [printed["auc_click"], printed["log_loss_buy"]] == [
            repr(trained[k]) for k in ("auc_click", "log_loss_buy")
        ]


def loaded_by(run_dir: Path) -> list[dict[str, int]]:
    """Return the counters of each embedding server after the last evaluation's loading."""
    events = read_journal(max((run_dir / "evals").iterdir()) / EVENTS)
    roles = next(event["roles"] for event in events if event["event"] == "roles")
    return [role["counts"] for role in roles if role["role"] == "embedding-server"]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """A run whose tables have several partitions, so that two servers saved rows of each."""
    folder = tmp_path_factory.mktemp("spread")
    words = ["cluster=embedded", "cluster.embedding_servers=2", "embedding.capacity=400000"]
    return train([*lists_job(folder), *words], folder / "run")


def test_servers_read_the_files_that_hold_their_rows_and_load_each_row_once(spread: JobResult) -> None:
    run_dir = spread.run_dir
    files = embedding_files(newest_checkpoint(run_dir / CHECKPOINTS))
    rows = sum(len(table.ids) for table in read_rows(newest_checkpoint(run_dir / CHECKPOINTS)).values())
    for servers in (1, 2, 3):
        assert evaluate(run_dir, f"cluster.embedding_servers={servers}", "cluster=embedded").exit_code == 0
        counts = loaded_by(run_dir)
        assert len(counts) == servers
        assert sum(count["rows_loaded"] for count in counts) == rows
        nbytes = sum(count["bytes_verified"] for count in counts)
        whole = sum(file.stat().st_size for file in files)
        assert nbytes == whole if servers < 3 else whole < nbytes < 3 * whole
        shutil.rmtree(run_dir / "evals")


def test_rows_that_are_not_loaded_are_missed(spread: JobResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a server pass over a file by mistake, the job does not go on with part of the model."""
    monkeypatch.setattr(snapshot, "_may_have_rows_of", lambda shard, rows: rows.first == 0)
    ended = evaluate(spread.run_dir, "cluster=embedded")
    assert isinstance(ended.exception, UserError)
    assert re.search(r"of [\d,]+ rows of .*/step-10 only [\d,]+ were loaded; use another", str(ended.exception))


def test_rows_open_in_pandas(saved: JobResult) -> None:
    checkpoint = newest_checkpoint(saved.run_dir / CHECKPOINTS)
    states = {"adagrad": ["adagrad_sum"], "sgd": [], "adam": ["adam_mean", "adam_square"]}
    groups = {
        ("item", "user"): (8, "adagrad"),
        ("tags",): (6, "sgd"),
        ("place",): (4, "adagrad"),
        ("words",): (8, "adam"),
    }
    found = set()
    total = 0
    for path in embedding_files(checkpoint):
        rows = pd.read_feather(path)
        tables = tuple(sorted(rows["table"].unique()))
        dim, optimizer = groups[tables]
        assert rows.columns.to_list() == ["table", "id", "last_used", "frequency", "embedding", *states[optimizer]]
        assert [str(rows[name].dtype) for name in ("id", "last_used")] == ["uint64", "int64"]
        assert rows["last_used"].between(0, STEPS - 1).all()
        for column in ["embedding", *states[optimizer]]:
            values = np.stack(rows[column].to_list())
            assert values.dtype == np.float32
            assert values.shape == (len(rows), dim)
        assert not rows.duplicated(["table", "id"]).any()
        found.add(tables)
        total += len(rows)
    assert found == set(groups)
    assert total == evaluation(saved)["rows"]


def test_the_manifest_lists_the_files(saved: JobResult) -> None:
    checkpoint = newest_checkpoint(saved.run_dir / CHECKPOINTS)
    assert [path.name for path in sorted(checkpoint.parent.iterdir())] == [f"step-{STEPS}", f"step-{STEPS // 2}"]
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    listed = {(file["folder"], file["name"]): file["nbytes"] for file in manifest["files"]}
    there = {(path.parent.name, path.name): path.stat().st_size for path in checkpoint.glob("*/*")}
    assert listed == there
    rows = {name: len(saved.ids) for name, saved in read_rows(checkpoint).items()}
    assert {table["name"]: table["rows"] for table in manifest["tables"]} == rows
    assert (manifest["step"], manifest["samples"], manifest["seed"]) == (STEPS, 2 * 138, 3)
    assert {table["name"]: table["dim"] for table in manifest["tables"]} == {
        "user": 8,
        "item": 8,
        "place": 4,
        "tags": 6,
        "words": 8,
    }


def test_the_statistics_of_its_tables(saved: JobResult) -> None:
    rows = read_rows(newest_checkpoint(saved.run_dir / CHECKPOINTS))
    result = CliRunner().invoke(app, ["table", "stats", str(saved.run_dir), "--json"])
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["step"] == STEPS
    assert told["tables"].keys() == rows.keys()
    for name, table in told["tables"].items():
        assert table["rows"] == table["counters"]["rows"] == len(rows[name].ids)
        assert table["bytes"] == table["counters"]["bytes"]
        norms = np.sqrt((rows[name].embedding.astype(np.float64) ** 2).sum(1))
        assert np.histogram(norms, table["norms"]["edges"])[0].tolist() == table["norms"]["counts"]
        assert np.histogram(STEPS - rows[name].last_used, table["ages"]["edges"])[0].tolist() == table["ages"]["counts"]
        assert 0.0 < table["hit_rate"] < 1.0


def shorten(path: Path) -> None:
    """Cut off the end of a file."""
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rows_file(checkpoint: Path) -> Path:
    """Return a file of rows."""
    return embedding_files(checkpoint)[0]


def weights_file(checkpoint: Path) -> Path:
    """Return the file of dense weights."""
    return checkpoint / "dense" / "dense.safetensors"


@pytest.mark.parametrize(
    ("find", "harm", "sentence"),
    [
        (rows_file, flip, "has changed since it was saved (its xxh128 is"),
        (rows_file, shorten, "has changed since it was saved: it has"),
        (rows_file, Path.unlink, "is missing; the checkpoint is incomplete"),
        (weights_file, flip, "has changed since it was saved (its xxh128 is"),
        (weights_file, shorten, "has changed since it was saved: it has"),
        (weights_file, Path.unlink, "is missing; the checkpoint is incomplete"),
    ],
)
def test_a_harmed_file_is_named(
    find: Callable[[Path], Path], harm: Callable[[Path], None], sentence: str, saved: JobResult, tmp_path: Path
) -> None:
    run_dir = copy_of(saved, tmp_path)
    path = find(newest_checkpoint(run_dir / CHECKPOINTS))
    harm(path)
    error = evaluate(run_dir).exception
    assert isinstance(error, UserError)
    assert str(path) in str(error)
    assert sentence in str(error)
    assert len(str(error).splitlines()) == 1


def copy_of(saved: JobResult, folder: Path) -> Path:
    """Return a copy of a run directory."""
    return Path(shutil.copytree(saved.run_dir, folder / "run"))


def test_a_damaged_manifest_is_named(saved: JobResult, tmp_path: Path) -> None:
    run_dir = copy_of(saved, tmp_path)
    manifest = newest_checkpoint(run_dir / CHECKPOINTS) / "manifest.json"
    shorten(manifest)
    error = evaluate(run_dir).exception
    assert isinstance(error, CheckpointError)
    assert f"{manifest} is damaged" in str(error)


def test_a_checkpoint_of_another_format_is_refused(saved: JobResult, tmp_path: Path) -> None:
    run_dir = copy_of(saved, tmp_path)
    manifest = newest_checkpoint(run_dir / CHECKPOINTS) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format_version": 99}))
    error = evaluate(run_dir).exception
    assert isinstance(error, CheckpointError)
    assert "has checkpoint format 99; this persia reads format 10" in str(error)


def test_an_unfinished_checkpoint_is_passed_over(saved: JobResult, tmp_path: Path) -> None:
    run_dir = copy_of(saved, tmp_path)
    last = newest_checkpoint(run_dir / CHECKPOINTS)
    last.rename(last.with_name(f"{last.name}.partial"))
    result = evaluate(run_dir)
    assert result.exit_code == 0, result.stderr
    assert int(key_values(result.stdout)["step"]) == STEPS // 2
    half = newest_checkpoint(run_dir / CHECKPOINTS)
    (half / "manifest.json").unlink()
    error = evaluate(run_dir).exception
    assert isinstance(error, CheckpointError)
    assert str(error).startswith(f"{run_dir} has no complete checkpoint")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("model.dim=16", "model.dim=16: the saved model has 8, which evaluating cannot change"),
        ("optimizer.embedding={kind: sgd, lr: 0.1}", "optimizer.embedding.kind=sgd: evaluating has no use for it"),
        ("model.args.width=25", "model.args.width=25: the saved model has "),
        ("embedding.capacity=10", r"^the checkpoint has [\d,]+ rows of .* embedding.capacity a higher value"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(word: str, sentence: str, saved: JobResult) -> None:
    error = evaluate(saved.run_dir, word).exception
    assert isinstance(error, UserError)
    assert re.search(sentence, str(error))
