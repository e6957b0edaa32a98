"""A run that has saved nothing where it saves now goes on from the checkpoint, elsewhere, that it began with."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from persia_cli.engines.job import JobResult
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, finished_steps, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train

STEPS, HALF = 40, 20
WORDS = [
    *("conf=synthetic", "cluster=embedded", "mode=sync", "train.batch_size=32", "train.log_every_steps=5"),
    *("dataset.generator.train_rows=640", "dataset.generator.eval_rows=96", f"train.steps={STEPS}", "train.epochs=5"),
]
UNSAVED = ["train.steps=30", "checkpoint.at_end=false"]
"""A start that ends before it has saved anything, as one that is killed does."""
SAVED = [f"train.steps={STEPS}", "checkpoint.at_end=true"]


def persia(*words: str | Path) -> Result:
    ended = CliRunner().invoke(app, list(map(str, words)))
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return ended


def training(run_dir: Path) -> list[tuple[int, Any]]:
    lines = [json.loads(text) for text in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if line["split"] == "train"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train(WORDS, tmp_path_factory.mktemp("straight") / "run")


@pytest.fixture
def half(tmp_path: Path) -> Path:
    train([*WORDS, f"train.steps={HALF}"], tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("how", ["resume", "auto"])
def test_a_run_that_saves_elsewhere_from_now_on(how: str, half: Path, straight: JobResult, tmp_path: Path) -> None:
    moved = f"checkpoint.path={tmp_path / 'moved'}"
    again: list[str | Path] = ["resume", half]
    if how == "auto":
        again = ["train", *WORDS, "resume=auto", "--run-dir", half]
    persia(*again, moved, *UNSAVED)
    assert finished_steps(tmp_path / "moved") == []
    listed = json.loads(persia("checkpoint", "ls", half, "--json").stdout)
    assert listed["elsewhere"] == str(checkpoint_folder(half / CHECKPOINTS, HALF))
    persia(*again, moved, *SAVED)
    assert training(half) == training(straight.run_dir)
    assert_same_model(newest_checkpoint(tmp_path / "moved"), newest_checkpoint(straight.run_dir / CHECKPOINTS))
    assert json.loads(persia("checkpoint", "ls", half, "--json").stdout)["elsewhere"] is None


def test_a_run_that_saves_again_where_it_did_before_does_not_go_back(
    half: Path, straight: JobResult, tmp_path: Path
) -> None:
    """Its newest checkpoint there is older than the one, elsewhere, that it began with."""
    persia("resume", half, f"checkpoint.path={tmp_path / 'moved'}", "train.steps=30")
    persia("resume", half, "checkpoint.path=null", "train.steps=35", "checkpoint.at_end=false")
    ended = persia("resume", half, *SAVED)
    assert str(checkpoint_folder(tmp_path / "moved", 30)) in ended.stderr
    assert training(half) == training(straight.run_dir)
    assert_same_model(newest_checkpoint(half / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))


def test_a_branch_that_has_saved_nothing(half: Path, straight: JobResult, tmp_path: Path) -> None:
    branch = tmp_path / "branch"
    persia("train", *WORDS, f"resume={checkpoint_folder(half / CHECKPOINTS, HALF)}", *UNSAVED, "--run-dir", branch)
    persia("resume", branch, *SAVED)
    assert training(branch) == training(straight.run_dir)
    assert_same_model(newest_checkpoint(branch / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))
    assert finished_steps(half / CHECKPOINTS) == [HALF]


def test_without_that_checkpoint_there_is_none(half: Path, tmp_path: Path) -> None:
    persia("resume", half, f"checkpoint.path={tmp_path / 'moved'}", *UNSAVED)
    shutil.rmtree(half / CHECKPOINTS)
    ended = CliRunner().invoke(app, ["resume", str(half), *SAVED])
    assert f"{tmp_path / 'moved'} has no complete checkpoint" in str(ended.exception)
