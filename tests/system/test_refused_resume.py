"""A resume that the command refuses leaves the run directory unchanged; one that a role refuses loses nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from persia_cli.errors import UserError
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder
from tests.support.jobs import train

STEPS, LAST = 30, 20
WORDS = [
    *("conf=synthetic", "cluster=embedded", "mode=sync", "train.batch_size=32", "train.log_every_steps=5"),
    *("dataset.generator.train_rows=640", "dataset.generator.eval_rows=96", f"train.steps={STEPS}", "train.epochs=5"),
    *("eval.every_steps=10", "checkpoint.every_steps=10", "checkpoint.best_by=auc"),
]
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a training to its end, with the record of an earlier start."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train([*WORDS, "train.steps=10"], run_dir)
    assert CliRunner().invoke(app, ["resume", str(run_dir), f"train.steps={STEPS}"]).exit_code == 0
    return run_dir


@pytest.fixture
def stopped(whole: Path, tmp_path: Path) -> Path:
    """The run as if it had been killed after step 25, while it saved, and its coordinator too."""
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    shutil.rmtree(checkpoint_folder(run_dir / CHECKPOINTS, STEPS))
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [text for text in lines if json.loads(text)["step"] <= 25]
    (run_dir / "metrics.jsonl").write_text("".join(kept) + kept[-1][:40])
    draft = checkpoint_folder(run_dir / CHECKPOINTS, STEPS).with_suffix(".partial")
    (draft / "embeddings").mkdir(parents=True)
    (draft / "embeddings" / "group-0.arrow").write_bytes(b"half")
    (run_dir / "coordinator.address").write_text("tcp://127.0.0.1:1\n")
    return run_dir


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


def first(name: str, run_dir: Path) -> Path:
    """Return the first file whose path fits, of the newest checkpoint or, for a path of one part, of the run."""
    return min((checkpoint_folder(run_dir / CHECKPOINTS, LAST) if "/" in name else run_dir).glob(name))


def turned(name: str) -> Damage:
    def damage(run_dir: Path) -> None:
        found = bytearray(first(name, run_dir).read_bytes())
        found[len(found) // 2] ^= 0x55
        first(name, run_dir).write_bytes(found)

    return damage


def halved(name: str) -> Damage:
    def damage(run_dir: Path) -> None:
        file = first(name, run_dir)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return damage


def removed(name: str) -> Damage:
    return lambda run_dir: first(name, run_dir).unlink()


def nothing(run_dir: Path) -> None:
    pass


REFUSED: dict[str, tuple[Damage, list[str], str]] = {
    "rows halved": (halved("embeddings/*"), [], ""),
    "frequencies removed": (removed("frequencies/*"), [], ""),
    "dense halved": (halved("dense/dense.safetensors"), [], ""),
    "dense optimizer removed": (removed("dense/dense_optimizer.safetensors"), [], ""),
    "scores removed": (removed("record/*"), [], ""),
    "manifest turned": (turned("./manifest.json"), [], ""),
    "best turned": (turned("../best.json"), [], "best.json is damaged"),
    "configuration changed": (turned("config.yaml"), [], ""),
    "configuration removed": (removed("config.yaml"), [], "is not a run directory"),
    "metrics of the checkpoint turned": (turned("run/metrics.jsonl"), [], "has changed since it was saved"),
    "no checkpoint": (lambda run_dir: shutil.rmtree(run_dir / CHECKPOINTS), [], "has no complete checkpoint"),
    "a file in the way": (lambda run_dir: in_the_way(run_dir / "earlier"), [], "earlier"),
    "all done": (nothing, [f"train.steps={LAST}"], f"all {LAST} steps of the run are done"),
    "another batch": (nothing, ["train.batch_size=64"], "train.batch_size=64: the run was trained with 32"),
    "another network": (nothing, ["model.top=[8]"], "model.top"),
    "another seed": (nothing, ["seed=4"], "seed=4: the run was trained with 0"),
    "other data": (nothing, ["dataset.generator.train_rows=641"], "dataset.generator.train_rows"),
    "an unknown key": (nothing, ["train.stepps=4"], "stepps"),
    "too little memory": (nothing, ["embedding.capacity=48"], " fit; give embedding.capacity"),
    "two ranks in a process": (nothing, ["cluster.nn_workers=2"], "exactly one NN worker"),
    "no device": (nothing, ["train.device=cuda:7"], "cuda"),
    "no folder for checkpoints": (nothing, ["checkpoint.path=/proc/nowhere"], "cannot be used"),
}


def in_the_way(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_resume_changes_nothing(stopped: Path, case: str) -> None:
    damage, words, reason = REFUSED[case]
    damage(stopped)
    before = content(stopped)
    ended = CliRunner().invoke(app, ["resume", str(stopped), *words])
    assert isinstance(ended.exception, UserError), (ended.output, ended.exception)
    assert reason in str(ended.exception)
    assert content(stopped) == before


@pytest.mark.parametrize("name", ["embeddings/*", "dense/dense_optimizer.safetensors"])
def test_what_a_role_refuses_fails_at_start_until_it_is_repaired(stopped: Path, name: str) -> None:
    damaged, recorded = first(name, stopped), (stopped / "metrics.jsonl").read_bytes()
    events, sound = (stopped / "events.jsonl").read_bytes(), damaged.read_bytes()
    turned(name)(stopped)
    ended = CliRunner().invoke(app, ["resume", str(stopped)])
    assert isinstance(ended.exception, UserError), (ended.output, ended.exception)
    assert "has changed since it was saved" in str(ended.exception)
    earlier = stopped / "earlier" / "start-2"
    assert (earlier / "metrics.jsonl").read_bytes() == recorded
    assert recorded.startswith((stopped / "metrics.jsonl").read_bytes())
    assert (earlier / "events.jsonl").read_bytes() == events
    damaged.write_bytes(sound)
    ended = CliRunner().invoke(app, ["resume", str(stopped)])
    assert ended.exit_code == 0, ended.output
    assert checkpoint_folder(stopped / CHECKPOINTS, STEPS).is_dir()
    assert not list((stopped / CHECKPOINTS).glob("*.partial"))
    steps = [json.loads(text)["step"] for text in (stopped / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert steps[-1] == STEPS


def test_a_branch_that_is_refused_leaves_no_folder(stopped: Path, tmp_path: Path) -> None:
    turned("run/metrics.jsonl")(stopped)
    before = content(stopped)
    newest = checkpoint_folder(stopped / CHECKPOINTS, LAST)
    words = ["train", *WORDS, f"resume={newest}", "--run-dir", str(tmp_path / "branch")]
    ended = CliRunner().invoke(app, words)
    assert isinstance(ended.exception, UserError), (ended.output, ended.exception)
    assert not (tmp_path / "branch").exists()
    (tmp_path / "branch").mkdir()
    assert isinstance(CliRunner().invoke(app, words).exception, UserError)
    assert content(tmp_path / "branch") == {}
    assert content(stopped) == before


def test_a_damaged_record_of_the_best_can_be_removed(stopped: Path) -> None:
    note = stopped / CHECKPOINTS / "best.json"
    turned("../best.json")(stopped)
    for command in ("resume", "eval"):
        refused = CliRunner().invoke(app, [command, str(stopped)])
        assert str(refused.exception).endswith("; remove it, and the newest checkpoint will be used as the best")
    note.unlink()
    ended = CliRunner().invoke(app, ["resume", str(stopped)])
    assert ended.exit_code == 0, ended.output
