"""A run that is resumed computes what an undisturbed one does: to the bit in sync mode, on any number of replicas."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from persia_cli.engines.job import JobResult, result_of
from persia_cli.errors import ConfigError
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train

STEPS, HALF = 60, 25
WORDS = [
    *("conf=synthetic", "cluster=embedded", "mode=sync", "train.batch_size=32", "train.log_every_steps=5"),
    *("dataset.generator.train_rows=640", "dataset.generator.eval_rows=96", f"train.steps={STEPS}", "train.epochs=5"),
    *("eval.every_steps=15", f"checkpoint.every_steps={HALF}"),
    "optimizer.dense.schedule={kind: cosine, over_steps: 60}",
]
"""Steps 20, 40 and 60 end an epoch, so the checkpoint of step 25 lies within one."""


def persia(*words: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def lines(run_dir: Path) -> list[dict[str, Any]]:
    """Return every metric of a run but speed, time, and those of windows, which begin anew."""
    kept = []
    for text in (run_dir / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        kept.append({k: v for k, v in line.items() if k not in ("time", "samples_per_s") and "window_" not in k})
    return kept


def training(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in lines(run_dir) if line["split"] == "train"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """The run, undisturbed."""
    return train(WORDS, tmp_path_factory.mktemp("straight") / "run")


@pytest.fixture
def stopped(straight: JobResult, tmp_path: Path) -> Path:
    """The run as if it had been killed at step 44, after the checkpoint of step 25 and lines of later steps."""
    run_dir = tmp_path / "run"
    shutil.copytree(straight.run_dir, run_dir)
    for step in (50, STEPS):
        shutil.rmtree(checkpoint_folder(run_dir / CHECKPOINTS, step))
    whole = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    later = [number for number, text in enumerate(whole) if json.loads(text)["step"] > 44]
    (run_dir / "metrics.jsonl").write_text("".join(whole[: later[0]]) + whole[later[0]][:40])
    (checkpoint_folder(run_dir / CHECKPOINTS, 50).with_suffix(".partial") / "embeddings").mkdir(parents=True)
    return run_dir


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["cluster.embedding_servers=3"],
        ["cluster.embedding_workers=2", "cluster.data_loaders=3", "cluster.embedding_servers=2"],
        ["embedding.num_partitions=64"],
    ],
    ids=["again", "servers", "all", "partitions"],
)
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(stopped: Path, straight: JobResult, words: list[str]) -> None:
    ended = persia("resume", stopped, *words)
    assert ended.exit_code == 0, ended.output
    assert lines(stopped) == lines(straight.run_dir)
    assert_same_model(newest_checkpoint(stopped / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))
    assert not list((stopped / "checkpoints").glob("*.partial"))
    began = [event for event in result_of(stopped).events if event["event"] == "phase"]
    assert (began[0]["phase"], began[0]["step"]) == ("training", HALF)
    assert (stopped / "earlier" / "start" / "events.jsonl").is_file()


@pytest.mark.parametrize("changes", [["mode=hybrid", "mode.staleness=1"], ["mode=async", "mode.staleness=1"]])
def test_other_modes_resume(tmp_path: Path, changes: list[str]) -> None:
    """With one step in flight these have one order of updates too."""
    words = [*WORDS, *changes, "optimizer.embedding.kind=adam"]
    straight = train(words, tmp_path / "straight")
    train([*words, "train.steps=40"], tmp_path / "run")
    ended = persia("resume", tmp_path / "run", "train.steps=60")
    assert ended.exit_code == 0, ended.output
    ours, theirs = (training(each) for each in (tmp_path / "run", straight.run_dir))
    assert ours == theirs
    assert_same_model(
        newest_checkpoint(tmp_path / "run" / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS)
    )


STYLE = ["model.norm=batch", "model.dropout=0.3", "model.embedding_dropout=0.1", "model.activation=dice"]


@pytest.mark.parametrize("parts", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_dropout_and_running_statistics_go_on(parts: int, tmp_path: Path) -> None:
    words = [*WORDS, *STYLE, f"train.accumulate={parts}"]
    straight = train(words, tmp_path / "straight")
    train([*words, f"train.steps={HALF}"], tmp_path / "run")
    ended = persia("resume", tmp_path / "run", f"train.steps={STEPS}")
    assert ended.exit_code == 0, ended.output
    assert training(tmp_path / "run") == training(straight.run_dir)
    assert_same_model(
        newest_checkpoint(tmp_path / "run" / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS)
    )


@pytest.mark.slow
@pytest.mark.processes
def test_ranks_normalise_together(tmp_path: Path) -> None:
    """The loss is that of one rank, up to rounding; without common statistics it would differ in the second digit."""
    words = [*WORDS, "cluster=local", "model.norm=batch", "model.activation=dice"]
    losses = [
        [line["loss"] for line in train([*words, f"cluster.nn_workers={ranks}"], tmp_path / str(ranks)).metrics]
        for ranks in (1, 2)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=2e-4)


def test_several_asynchronous_ranks_refuse_statistics_of_a_batch(tmp_path: Path) -> None:
    words = [*WORDS, "cluster=local", "mode=async", "cluster.nn_workers=2", "model.norm=batch"]
    ended = persia("train", *words, "--run-dir", tmp_path / "run")
    assert isinstance(ended.exception, ConfigError)
    assert "layer network.1 (BatchNorm)" in str(ended.exception)


@pytest.mark.slow
@pytest.mark.processes
def test_processes_and_ranks_resume(tmp_path: Path) -> None:
    words = [*WORDS, "cluster=local"]
    straight = train(words, tmp_path / "straight")
    train([*words, f"train.steps={HALF}", "cluster.embedding_servers=2"], tmp_path / "run")
    ended = persia("resume", tmp_path / "run", f"train.steps={STEPS}", "cluster.nn_workers=2")
    assert ended.exit_code == 0, ended.output
    final, expected = lines(tmp_path / "run")[-1], lines(straight.run_dir)[-1]
    assert final["step"] == expected["step"] == STEPS
    assert final["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_another_folder_gets_the_lines_up_to_the_checkpoint(straight: JobResult, tmp_path: Path) -> None:
    checkpoint, run_dir = checkpoint_folder(straight.run_dir / CHECKPOINTS, HALF), tmp_path / "branch"
    ended = persia("train", *WORDS, f"resume={checkpoint}", "--run-dir", run_dir, "train.steps=40")
    assert ended.exit_code == 0, ended.output
    assert training(run_dir) == [line for line in training(straight.run_dir) if line["step"] <= 40]
    assert not (run_dir / "earlier").exists()


def test_an_older_checkpoint_goes_on_in_another_folder_alone(straight: JobResult) -> None:
    older = checkpoint_folder(straight.run_dir / CHECKPOINTS, HALF)
    ended = persia("train", *WORDS, f"resume={older}", "--run-dir", straight.run_dir, "train.steps=80")
    assert f"has a newer checkpoint, {checkpoint_folder(straight.run_dir / CHECKPOINTS, STEPS)}" in str(ended.exception)
    assert not (straight.run_dir / "earlier").exists()


def test_auto_begins_goes_on_and_ends(tmp_path: Path, straight: JobResult) -> None:
    """The same command, as a scheduler repeats it: at first, without a checkpoint, with one, and when all is done."""
    run_dir = tmp_path / "run"
    command = ["train", *WORDS, "resume=auto", "--run-dir", run_dir]
    shutil.copytree(straight.run_dir, run_dir)
    shutil.rmtree(run_dir / "checkpoints")
    again = persia(*command)
    assert again.exit_code == 0, again.output
    assert "has no complete checkpoint, so it begins again" in again.stderr
    assert lines(run_dir) == lines(straight.run_dir)
    done = persia(*command)
    assert done.exit_code == 0, done.output
    assert f"all {STEPS} steps of the run are done" in done.stderr
    assert "resume= needs a value" in str(persia("train", *WORDS, "resume=").exception)
    assert "given twice" in str(persia("train", *WORDS, "resume=auto", "resume=auto").exception)
    assert "give --run-dir" in str(persia("train", *WORDS, "resume=auto").exception)


def test_the_same_command_goes_on_with_files_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has the absolute path, and the kinds of ids that the command left to the files."""
    draw = np.random.default_rng(0)
    columns = {"y": draw.integers(0, 2, 320), "item": draw.integers(0, 30, 320), "shop": ["corner", "mall"] * 160}
    pq.write_table(pa.table(columns), tmp_path / "visits.parquet")
    monkeypatch.chdir(tmp_path)
    data = ["dataset=parquet", "dataset.path=visits.parquet", "dataset.labels=[y]", "dataset.sparse=[item, shop]"]
    small = ["model.hidden=[8]", "model.dim=4", "cluster=embedded", "mode=sync", "train.batch_size=32"]
    command = ["train", *data, *small, "dataset.split={kind: every, n: 2}", "resume=auto", "--run-dir", "run"]
    for steps in (2, 4):
        ended = persia(*command, f"train.steps={steps}")
        assert ended.exit_code == 0, (ended.output, ended.exception)
        assert lines(tmp_path / "run")[-1]["step"] == steps


def test_a_start_that_came_to_nothing_begins_again(tmp_path: Path) -> None:
    """As if it was killed before it wrote its configuration; a dry run leaves all where it is."""
    run_dir = tmp_path / "run"
    (run_dir / "roles").mkdir(parents=True)
    command = ["train", *WORDS, "train.steps=15", "resume=auto", "--run-dir", run_dir]
    assert persia(*command, "--dry-run").exit_code == 0
    assert [path.name for path in run_dir.iterdir()] == ["roles"]
    ended = persia(*command)
    assert ended.exit_code == 0, ended.output
    assert (run_dir / "earlier" / "start" / "roles").is_dir()
    assert lines(run_dir)[-1]["step"] == 15


def test_a_training_that_ended_early_is_finished(tmp_path: Path) -> None:
    words = [*WORDS, "train.stop_early={metric: auc, patience: 1, min_delta: 1.0}"]
    command = ["train", *words, "resume=auto", "--run-dir", tmp_path / "run"]
    train(words, tmp_path / "run")
    before = lines(tmp_path / "run")
    assert before[-1]["step"] == 30
    done = persia(*command)
    assert done.exit_code == 0, done.output
    assert "the training ended early, at step 30, as auc" in done.stderr
    assert lines(tmp_path / "run") == before
    on = persia("resume", tmp_path / "run", "train.stop_early.patience=2")
    assert on.exit_code == 0, on.output
    assert lines(tmp_path / "run")[-1]["step"] == 45


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["train.batch_size=64"], "train.batch_size=64: the run was trained with 32"),
        (["seed=4"], "seed=4: the run was trained with 0"),
        (["model.top=[8]"], "model.top"),
        (["optimizer.embedding.lr=0.5"], "optimizer.embedding.lr=0.5: the run was trained with"),
        (["dataset.generator.train_rows=641"], "dataset.generator.train_rows=641"),
        ([f"train.steps={HALF}"], f"all {HALF} steps of the run are done"),
    ],
)
def test_what_differs_is_refused_in_a_sentence(stopped: Path, words: list[str], reason: str) -> None:
    before = (stopped / "metrics.jsonl").read_bytes()
    ended = persia("resume", stopped, *words)
    assert ended.exit_code != 0
    assert reason in str(ended.exception or ended.output)
    assert (stopped / "metrics.jsonl").read_bytes() == before
    assert not (stopped / "earlier").exists()


def test_a_damaged_line_comes_from_the_checkpoint(stopped: Path) -> None:
    whole = (stopped / "metrics.jsonl").read_bytes()
    (stopped / "metrics.jsonl").write_bytes(b"X" + whole[1:])
    assert persia("resume", stopped).exit_code == 0
    assert (stopped / "metrics.jsonl").read_bytes().startswith(whole.partition(b"\n")[0])
