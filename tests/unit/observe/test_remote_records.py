"""The record of a run in its checkpoints, which another machine reports and continues."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from persia_cli.errors import CheckpointError
from persia_cli.main import app
from persia_cli.observe.history import read_history
from persia_cli.observe.record_state import COPIED_FILES, copies_in
from persia_cli.observe.remote_records import copy_record, newest_record, records_at
from persia_cli.store.checkpoints.manifest import checkpoint_folder, read_manifest
from tests.support.jobs import losses, train
from tests.support.small import WORDS

LOGGED = [*WORDS, "cluster=embedded", "train.log_every_steps=1", "eval.every_steps=2", "checkpoint.every_steps=2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with checkpoints in the folder `saved` next to it, evaluated at the last step."""
    folder = tmp_path_factory.mktemp("trained")
    train([*LOGGED, "train.steps=4", f"checkpoint.path={folder / 'saved'}"], folder / "run")
    return folder


def test_each_checkpoint_has_the_record_so_far(trained: Path) -> None:
    for step in (2, 4):
        checkpoint = checkpoint_folder(trained / "saved", step)
        manifest = read_manifest(checkpoint)
        counted = manifest.progress.metrics_bytes
        copies = {file.name: (checkpoint / file.folder / file.name).read_bytes() for file in copies_in(manifest)}
        metrics = (trained / "run" / "metrics.jsonl").read_bytes()
        copied = copies["metrics.jsonl"]
        assert len(copied) >= counted > 0
        assert metrics.startswith(copied)
        assert copies["config.yaml"] == (trained / "run" / "config.yaml").read_bytes()


def test_the_newest_has_the_end_of_the_job(trained: Path, tmp_path: Path) -> None:
    copy_record(trained / "saved", tmp_path / "copy")
    for name in COPIED_FILES[1:]:
        assert (tmp_path / "copy" / name).read_bytes() == (trained / "run" / name).read_bytes()
    assert read_history(tmp_path / "copy").outcome(time.time()).state == "done"


def test_a_run_goes_on_from_its_checkpoints_alone(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = tmp_path / "saved"
    (trained / "saved").rename(saved)
    (trained / "run").rename(tmp_path / "gone")
    try:
        ended = CliRunner().invoke(app, ["resume", f"file://{saved}", "train.steps=6"])
        assert ended.exit_code == 0, ended.exception
        [run_dir] = (tmp_path / "runs").iterdir()
        straight = train([*LOGGED, "train.steps=6"], tmp_path / "straight")
        lines = [json.loads(text) for text in (run_dir / "metrics.jsonl").read_text().splitlines()]
        trained_lines = [line["loss"] for line in lines if line["split"] == "train"]
        assert trained_lines == losses(straight)
    finally:
        saved.rename(trained / "saved")
        (tmp_path / "gone").rename(trained / "run")


def test_a_damaged_checkpoint_is_named_and_hides_no_other_run(trained: Path, tmp_path: Path) -> None:
    damaged = checkpoint_folder(tmp_path / "damaged", 9)
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_text("{")
    (tmp_path / "sound").symlink_to(trained / "saved")
    with pytest.raises(CheckpointError, match="is damaged"):
        newest_record(tmp_path / "damaged")
    with records_at(tmp_path) as found:
        assert {place.name for place in found.values()} == {"damaged", "sound"}
