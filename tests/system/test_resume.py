"""A run that is resumed computes what an undisturbed one does: to the bit in sync mode, on any number of replicas."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from persia_cli.engines.job import JobResult, result_of
from persia_cli.errors import DataError, UserError
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, finished_steps, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import launch, plan, train

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


def succeed(*words: str | Path) -> Result:
    """Run a command that must end well."""
    ended = persia(*words)
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return ended


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
def straight(trained: Callable[..., JobResult]) -> JobResult:
    """The run, undisturbed."""
    return trained(*WORDS)


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
        [
            *("cluster.embedding_workers=2", "cluster.data_loaders=3", "cluster.embedding_servers=3"),
            "embedding.num_partitions=64",
        ],
    ],
    ids=["again", "others"],
)
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(stopped: Path, straight: JobResult, words: list[str]) -> None:
    succeed("resume", stopped, *words)
    assert lines(stopped) == lines(straight.run_dir)
    assert_same_model(newest_checkpoint(stopped / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))
    assert not list((stopped / "checkpoints").glob("*.partial"))
    began = [event for event in result_of(stopped).events if event["event"] == "phase"]
    assert (began[0]["phase"], began[0]["step"]) == ("training", HALF)
    assert (stopped / "earlier" / "start" / "events.jsonl").is_file()


def test_keys_that_do_not_influence_the_model_may_change(stopped: Path, straight: JobResult) -> None:
    changed = ["train.log_every_steps=10", "train.trace_steps=[26,30]", "train.graphs=off"]
    succeed("resume", stopped, *changed, "loggers=[]", "recovery.max_restarts=0")
    assert_same_model(newest_checkpoint(stopped / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))


def test_an_asynchronous_run_resumes(tmp_path: Path) -> None:
    """With one step in flight it has one order of updates too."""
    words = [*WORDS, "mode=async", "mode.staleness=1", "optimizer.embedding.kind=adam"]
    straight = train(words, tmp_path / "straight")
    train([*words, "train.steps=40"], tmp_path / "run")
    succeed("resume", tmp_path / "run", "train.steps=60")
    ours, theirs = (training(each) for each in (tmp_path / "run", straight.run_dir))
    assert ours == theirs
    assert_same_model(
        newest_checkpoint(tmp_path / "run" / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS)
    )


STYLE = ["model.norm=batch", "model.dropout=0.3", "model.embedding_dropout=0.1", "model.activation=dice"]


def test_dropout_and_running_statistics_go_on(tmp_path: Path) -> None:
    words = [*WORDS, *STYLE, "train.accumulate=4"]
    straight = train(words, tmp_path / "straight")
    train([*words, f"train.steps={HALF}"], tmp_path / "run")
    succeed("resume", tmp_path / "run", f"train.steps={STEPS}")
    assert training(tmp_path / "run") == training(straight.run_dir)
    assert_same_model(
        newest_checkpoint(tmp_path / "run" / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS)
    )


def test_another_folder_gets_the_lines_up_to_the_checkpoint(straight: JobResult, tmp_path: Path) -> None:
    checkpoint, run_dir = checkpoint_folder(straight.run_dir / CHECKPOINTS, HALF), tmp_path / "branch"
    succeed("train", *WORDS, f"resume={checkpoint}", "--run-dir", run_dir, "train.steps=40")
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
    again = succeed(*command)
    assert "has no complete checkpoint, so it begins again" in again.stderr
    assert lines(run_dir) == lines(straight.run_dir)
    done = succeed(*command)
    assert f"all {STEPS} steps of the run are done" in done.stderr
    assert "resume= needs a value" in str(persia("train", *WORDS, "resume=").exception)
    assert "given twice" in str(persia("train", *WORDS, "resume=auto", "resume=auto").exception)
    assert "give --run-dir" in str(persia("train", *WORDS, "resume=auto").exception)


def test_a_training_that_ended_early_is_finished(tmp_path: Path) -> None:
    words = [*WORDS, "train.stop_early={metric: auc, patience: 1, min_delta: 1.0}"]
    command = ["train", *words, "resume=auto", "--run-dir", tmp_path / "run"]
    train(words, tmp_path / "run")
    before = lines(tmp_path / "run")
    assert before[-1]["step"] == 30
    done = succeed(*command)
    assert "the training ended early, at step 30, as auc" in done.stderr
    assert lines(tmp_path / "run") == before
    succeed("resume", tmp_path / "run", "train.stop_early.patience=2")
    assert lines(tmp_path / "run")[-1]["step"] == 45


UNSAVED = ["train.steps=30", "checkpoint.at_end=false"]
"""A start that ends before it has saved anything, as one that is killed does."""
SAVED = [f"train.steps={STEPS}", "checkpoint.at_end=true"]


@pytest.fixture
def half(trained: Callable[..., JobResult], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained(*WORDS, f"train.steps={HALF}").run_dir, tmp_path / "run"))


def test_a_run_that_saves_elsewhere_from_now_on(half: Path, straight: JobResult, tmp_path: Path) -> None:
    moved = f"checkpoint.path={tmp_path / 'moved'}"
    again: list[str | Path] = ["train", *WORDS, "resume=auto", "--run-dir", half]
    succeed(*again, moved, *UNSAVED)
    assert finished_steps(tmp_path / "moved") == []
    listed = json.loads(succeed("checkpoint", "ls", half, "--json").stdout)
    assert listed["elsewhere"] == str(checkpoint_folder(half / CHECKPOINTS, HALF))
    succeed(*again, moved, *SAVED)
    assert training(half) == training(straight.run_dir)
    assert_same_model(newest_checkpoint(tmp_path / "moved"), newest_checkpoint(straight.run_dir / CHECKPOINTS))
    assert json.loads(succeed("checkpoint", "ls", half, "--json").stdout)["elsewhere"] is None


def test_a_run_that_saves_again_where_it_did_before_does_not_go_back(
    half: Path, straight: JobResult, tmp_path: Path
) -> None:
    """Its newest checkpoint there is older than the one, elsewhere, that it began with."""
    succeed("resume", half, f"checkpoint.path={tmp_path / 'moved'}", "train.steps=30")
    succeed("resume", half, "checkpoint.path=null", "train.steps=35", "checkpoint.at_end=false")
    ended = succeed("resume", half, *SAVED)
    assert str(checkpoint_folder(tmp_path / "moved", 30)) in ended.stderr
    assert training(half) == training(straight.run_dir)
    assert_same_model(newest_checkpoint(half / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))


def test_without_that_checkpoint_there_is_none(half: Path, tmp_path: Path) -> None:
    succeed("resume", half, f"checkpoint.path={tmp_path / 'moved'}", *UNSAVED)
    shutil.rmtree(half / CHECKPOINTS)
    ended = persia("resume", half, *SAVED)
    assert f"{tmp_path / 'moved'} has no complete checkpoint" in str(ended.exception)


SMALL = ("model.hidden=[8]", "model.dim=4", "cluster=embedded", "mode=sync", "train.batch_size=32")
DATA = ("dataset=parquet", "dataset.labels=[y]", "dataset.sparse=[item]", "dataset.split={kind: every, n: 5}")
EPOCH = 10


def write(path: Path, group_rows: int = 40, seed: int = 0) -> None:
    draw = np.random.default_rng(seed)
    columns = {"y": draw.integers(0, 2, 400), "item": draw.integers(0, 30, 400)}
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "visits.parquet")
    return tmp_path / "data"


def words_on(data: Path, steps: int) -> list[str]:
    return ["conf=synthetic", *DATA, *SMALL, f"dataset.path={data}", "train.epochs=4", f"train.steps={steps}"]


def resume_to(run: Path, steps: int) -> Result:
    return CliRunner().invoke(app, ["resume", str(run), f"train.steps={steps}"])


@pytest.mark.parametrize("steps", [4, EPOCH])
def test_other_row_groups_are_refused_within_an_epoch_and_at_its_beginning(
    data: Path, tmp_path: Path, steps: int
) -> None:
    launch(plan(words_on(data, steps), tmp_path / "run"))
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    write(data / "visits.parquet", 80)
    ended = resume_to(tmp_path / "run", steps + 3)
    assert isinstance(ended.exception, DataError), ended.output
    message = str(ended.exception)
    assert "1 file with 5 row groups" in message
    assert "1 file with 10 row groups" in message
    assert "init_from" in message
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert not (tmp_path / "run" / "earlier").exists()
    assert "all" in str(resume_to(tmp_path / "run", steps).exception)  # nothing is left to train
    write(data / "visits.parquet")
    assert resume_to(tmp_path / "run", steps + 3).exit_code == 0


def test_other_names_are_refused_and_another_place_is_not(data: Path, tmp_path: Path) -> None:
    launch(plan(words_on(data, 4), tmp_path / "run"))
    shutil.move(data / "visits.parquet", data / "other.parquet")
    ended = resume_to(tmp_path / "run", 7)
    assert "in files of other names, or in files or row groups of other sizes, when" in str(ended.exception)
    shutil.move(data / "other.parquet", data / "visits.parquet")
    shutil.move(data, tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    ended = resume_to(tmp_path / "run", 7)
    assert ended.exit_code == 0, (ended.output, ended.exception)
    assert result_of(tmp_path / "run").metrics[-1]["step"] == 7


def test_moved_data_is_resumed_and_other_data_of_its_shape_only_if_it_is_accepted(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launch(plan(words_on(data, 4), run))
    shutil.copytree(data, tmp_path / "copy")
    succeed("resume", run, f"dataset.path={tmp_path / 'copy'}", "train.steps=5")
    write(tmp_path / "copy" / "visits.parquet", seed=1)
    refused = str(resume_to(run, 7).exception)
    assert "copy/visits.parquet has changed since the checkpoint was saved" in refused
    assert str(persia("resume", run, "dataset.accept_changed=v0", "train.steps=7").exception) == refused
    succeed("resume", run, refused.rpartition(" ")[2], "train.steps=7")
    succeed("resume", run, "dataset.accept_changed=null", "train.steps=8")  # they are those of the checkpoint now
    assert result_of(run).metrics[-1]["step"] == 8


@pytest.mark.parametrize("other", [{"seed": 1}, {"group_rows": 80}], ids=["rows", "row groups"])
def test_files_that_are_replaced_between_the_plan_and_the_start_end_the_job(
    data: Path, tmp_path: Path, other: dict[str, int]
) -> None:
    job = plan(words_on(data, 4), tmp_path / "run")
    write(data / "visits.parquet", **other)
    with pytest.raises(UserError, match="was changed, replaced or removed"):
        launch(job)
