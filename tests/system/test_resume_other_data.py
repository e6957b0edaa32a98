"""A run goes on with the training files that it began with, and says so where they are others."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from persia_cli.engines.job import result_of
from persia_cli.errors import DataError, UserError
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    MANIFEST,
    decode_manifest,
    newest_checkpoint,
    write_checked,
)
from tests.support.jobs import launch, plan

SMALL = ("model.hidden=[8]", "model.dim=4", "cluster=embedded", "mode=sync", "train.batch_size=32")
DATA = ("dataset=parquet", "dataset.labels=[y]", "dataset.sparse=[item]", "dataset.split={kind: every, n: 5}")
EPOCH = 10


def write(path: Path, group_rows: int = 40) -> None:
    draw = np.random.default_rng(0)
    columns = {"y": draw.integers(0, 2, 400), "item": draw.integers(0, 30, 400)}
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "visits.parquet")
    return tmp_path / "data"


def words(data: Path, steps: int) -> list[str]:
    return ["conf=synthetic", *DATA, *SMALL, f"dataset.path={data}", "train.epochs=4", f"train.steps={steps}"]


def resume(run: Path, steps: int) -> Result:
    return CliRunner().invoke(app, ["resume", str(run), f"train.steps={steps}"])


@pytest.mark.parametrize("steps", [4, EPOCH])
def test_other_row_groups_are_refused_within_an_epoch_and_at_its_beginning(
    data: Path, tmp_path: Path, steps: int
) -> None:
    launch(plan(words(data, steps), tmp_path / "run"))
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    write(data / "visits.parquet", 80)
    ended = resume(tmp_path / "run", steps + 3)
    assert isinstance(ended.exception, DataError), ended.output
    message = str(ended.exception)
    assert "1 file with 5 row groups" in message
    assert "1 file with 10 row groups" in message
    assert "init_from" in message
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert not (tmp_path / "run" / "earlier").exists()
    assert "all" in str(resume(tmp_path / "run", steps).exception)  # nothing is left to train
    write(data / "visits.parquet")
    assert resume(tmp_path / "run", steps + 3).exit_code == 0


def test_other_names_are_refused_and_another_place_is_not(data: Path, tmp_path: Path) -> None:
    launch(plan(words(data, 4), tmp_path / "run"))
    shutil.move(data / "visits.parquet", data / "other.parquet")
    ended = resume(tmp_path / "run", 7)
    assert "in files of other names, or in files or row groups of other sizes, when" in str(ended.exception)
    shutil.move(data / "other.parquet", data / "visits.parquet")
    shutil.move(data, tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    ended = resume(tmp_path / "run", 7)
    assert ended.exit_code == 0, (ended.output, ended.exception)
    assert result_of(tmp_path / "run").metrics[-1]["step"] == 7


def test_a_checkpoint_without_this_record_is_resumed(data: Path, tmp_path: Path) -> None:
    launch(plan(words(data, 4), tmp_path / "run"))
    newest = newest_checkpoint(tmp_path / "run" / CHECKPOINTS)
    manifest = decode_manifest(newest)
    assert manifest.progress.train_data is not None
    silent = msgspec.structs.replace(manifest.progress, train_data=None)
    write_checked(newest / MANIFEST, msgspec.structs.replace(manifest, progress=silent))
    assert resume(tmp_path / "run", 7).exit_code == 0


def test_a_loader_that_sees_other_row_groups_than_the_plan_ends_the_job(data: Path, tmp_path: Path) -> None:
    job = plan(words(data, 4), tmp_path / "run")
    write(data / "visits.parquet", 80)
    with pytest.raises(UserError, match="data-loader-0: it sees other training files or row groups than the job was"):
        launch(job)
