"""The record of a run reads back as the run it is."""

from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.record import read_run, write_run
from persia_cli.errors import ConfigError

TABLES = "embedding.tables={a: {dim: 4, dtype: float16, share: 0.5}, b: {hash_stack: {rounds: 2, size: 9}}}"
SCHEDULE = "optimizer.embedding.schedule={kind: step, every_steps: 5, factor: 0.5}"


def test_a_run_reads_back_equal_and_can_be_run_again(user_conf: Path, tmp_path: Path) -> None:
    words = ["conf=mine", "embedding.memory=3MiB", "optimizer.dense.lr=1e-12", TABLES, SCHEDULE]
    run = compose_run(words, [user_conf])
    path = tmp_path / "config.yaml"
    write_run(run, path)
    assert read_run(path) == run
    assert compose_run([f"conf={path}"]) == run
    assert path.read_text().startswith("# The complete configuration of a run, written by persia ")
    assert [file.name for file in tmp_path.glob("config*")] == ["config.yaml"]


def test_a_missing_record(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/config\.yaml: there is no such file$"):
        read_run(tmp_path / "config.yaml")


def test_a_damaged_record(user_conf: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_run(compose_run(["conf=mine"], [user_conf]), path)
    path.write_text(path.read_text().replace("seed: 0", "sede: 0").replace("batch_size: 256", "batch_size: x"))
    with pytest.raises(ConfigError) as caught:
        read_run(path)
    assert str(caught.value).splitlines() == [
        f"{path}: train.batch_size=x: expected a whole number above 0",
        f"{path}: sede=0: no such key; did you mean seed (a whole number of at least 0)?",
    ]
    path.write_text("a: [")
    with pytest.raises(ConfigError, match=r"/config\.yaml: cannot be read, while parsing"):
        read_run(path)
