"""Trainings on tables: with the bits of a folder of their files, and resumed at the snapshot that they began with."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from persia_cli.data.read.files import find_files, locate
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.tables import catalog_in, copied, delta_table, iceberg_table, samples, start_libraries

pytestmark = pytest.mark.slow

ICEBERG = "iceberg:shop/db.clicks"
JOB = [
    *("model=ffnn", "model.dim=4", "model.hidden=[8]", "mode=sync", "cluster=embedded", "train.batch_size=32"),
    *("train.threads=1", "embedding.memory=64MiB", "checkpoint.at_end=true", "train.epochs=3", "name=tables"),
]
DATA = {"kind": "parquet", "labels": ["clicked"], "dense": ["price"], "sparse": ["user", "item"]}


@pytest.fixture(scope="module", autouse=True)
def _libraries(tmp_path_factory: pytest.TempPathFactory) -> None:
    start_libraries(tmp_path_factory.mktemp("libraries") / "table")


@pytest.fixture(params=["iceberg", "delta"])
def table(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path, Callable[[], None]]:
    """The path of a table, its folder, and what appends to it."""
    if request.param == "iceberg":
        made = iceberg_table(catalog_in(tmp_path, monkeypatch))
        return ICEBERG, tmp_path / "warehouse", lambda: made.append(samples(100, 7))
    pytest.importorskip("deltalake", reason="needs the extra delta")
    place = delta_table(tmp_path / "clicks")
    return f"delta:{place}", place, lambda: delta_table(place, 1) and None


def described(folder: Path, path: str) -> str:
    """Write the description of a data set; return the argument that names it."""
    file = folder / f"{path.partition(':')[0].rpartition('/')[2]}.yaml"
    file.write_text(yaml.safe_dump(DATA | {"path": path, "split": {"kind": "every", "n": 5}}))
    return f"dataset={file}"


def persia(*words: str | Path) -> Result:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result


def test_a_training_on_a_table_has_the_bits_of_its_folder_and_resumes_at_its_snapshot(
    table: tuple[str, Path, Callable[[], None]], tmp_path: Path
) -> None:
    path, folder, append = table
    files = [file.path for file in find_files(locate(path))]
    persia("train", described(tmp_path, path), *JOB, "train.steps=5", "--run-dir", tmp_path / "table")
    append()
    persia("resume", tmp_path / "table", "train.steps=null")
    config = yaml.safe_load((tmp_path / "table" / "config.yaml").read_text())
    assert config["dataset"]["path"].startswith(f"{path}@")
    copy = copied(files, folder, tmp_path / "copy")
    persia("train", described(tmp_path, str(copy)), *JOB, "--run-dir", tmp_path / "folder")
    found, given = (newest_checkpoint(tmp_path / name / CHECKPOINTS) for name in ("table", "folder"))
    assert found is not None
    assert given is not None
    assert_same_model(found, given)
