"""The model of a command line, and refusals before anything starts."""

import shutil
from pathlib import Path

import pytest
import yaml

from persia_cli.errors import CheckpointError, ConfigError, UserError
from persia_cli.observe.journal import EVENTS, Journal
from persia_cli.observe.saved_run import find_model, locate_model
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with a checkpoint of step 9."""
    folder = tmp_path / "run"
    write_run(folder, make_run(), 9, [made_up_rows(20, 8, 9, ("a",))], {})
    return folder


def test_a_run_or_one_of_its_checkpoints(run_dir: Path, tmp_path: Path) -> None:
    checkpoint = checkpoint_folder(run_dir / CHECKPOINTS, 9)
    for folder, step in ((run_dir, None), (run_dir, 9), (checkpoint, None)):
        model = find_model(folder, step)
        assert (model.run_dir, model.checkpoint, model.run) == (run_dir, checkpoint, make_run())
    with pytest.raises(UserError, match="step-9 is a checkpoint already; leave out --step"):
        find_model(checkpoint, 9)
    with pytest.raises(CheckpointError, match="no checkpoint of step 8; it has those of steps 9"):
        find_model(run_dir, 8)
    with pytest.raises(UserError, match="is neither a run directory nor a checkpoint"):
        find_model(tmp_path)
    copied = Path(shutil.copytree(checkpoint, tmp_path / "copied"))
    assert locate_model(copied) == (copied, None)
    with pytest.raises(UserError, match="copied is a checkpoint without its run"):
        find_model(copied)


def test_a_configuration_that_has_changed_is_refused(run_dir: Path) -> None:
    path = run_dir / "config.yaml"
    text = path.read_text()
    values = yaml.safe_load(text)
    path.write_text("# a comment\n" + yaml.safe_dump(values))
    find_model(run_dir)
    values["train"]["batch_size"] = 33
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(CheckpointError, match=r"changed since .*: train\.batch_size is 33 and was 32; restore it"):
        find_model(run_dir)
    path.write_text(text[: len(text) // 2] + "{")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        find_model(run_dir)


def test_only_files_of_dead_processes_are_removed(run_dir: Path) -> None:
    left = [
        run_dir / CHECKPOINTS / "step-20.partial",
        checkpoint_folder(run_dir / CHECKPOINTS, 5).with_name("step-5.removed"),
    ]
    for folder in left:
        (folder / "embeddings").mkdir(parents=True)
    journal = Journal(run_dir / EVENTS, alone=True)
    with pytest.raises(UserError, match="being written by another process"):
        Journal(run_dir / EVENTS, alone=True)
    find_model(run_dir)
    assert all(folder.is_dir() for folder in left)
    journal.close()
    find_model(run_dir)
    assert not any(folder.exists() for folder in left)
    assert checkpoint_folder(run_dir / CHECKPOINTS, 9).is_dir()
