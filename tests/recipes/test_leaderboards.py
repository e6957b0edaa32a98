"""The configurations of leaderboards: from files in their format to a plan for every network, and to a trained one."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import ParquetDataset
from persia_cli.data.read.ids import RARE_ID, text_id
from persia_cli.main import main
from persia_cli.shipped import shipped
from tests.support.jobs import plan
from tests.support.leaderboards import (
    CATEGORIES,
    COUNTS,
    split_challenge,
    write_avazu_x4,
    write_criteo_x4,
    write_x1,
)
from tests.support.prepared import dataset_of, prepare

NETWORKS = {
    name: [file.stem for file in (shipped("conf") / "leaderboards" / name).iterdir()]
    for name in ("criteo_x1", "criteo_x4", "avazu_x1", "avazu_x4")
}


def make(name: str, folder: Path) -> None:
    """Make the data of a leaderboard, 60 rows in each file, in the folder where its configuration looks for it."""
    if name == "criteo_x1":
        write_x1(folder / "data" / name, [*COUNTS, *CATEGORIES])
    elif name == "avazu_x1":
        write_x1(folder / "data" / name, [f"feat_{number}" for number in range(1, 23)])
    elif name == "criteo_x4":
        prepare("criteo_x4", write_criteo_x4(folder / "raw"), folder / "data" / name)
    else:
        prepare("avazu", write_avazu_x4(folder / "raw"), folder / "data" / name)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def dry_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Check that `persia train --dry-run`, which builds the network and tries it, accepts the arguments."""

    def checked(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["persia", "train", *words, "--dry-run"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, capsys.readouterr().err

    return checked


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_can_be_planned(name: str, here: Path, dry_run: Callable[..., None]) -> None:
    make(name, here)
    dry_run(f"conf={name}", "model=fm")
    assert len(NETWORKS[name]) >= 7
    for network in NETWORKS[name]:
        job = plan([f"conf={name}", f"model={network}"], here / "run")
        assert (job.run.model.kind, job.facts.train_rows, job.facts.eval_rows) == (network, 60, 60)


def test_counts_of_criteo_x4_are_ids_of_their_buckets(tmp_path: Path) -> None:
    """floor(log(x)^2) above 2, the count itself below, 0 where it is missing; rare ids are one."""
    counts = [-2, 0, 1, 2, 3, 4, 5, 7, 8, 1000, 8_000_000]
    wanted = [-2, 0, 1, 2, 1, 1, 2, 3, 4, 47, 252]
    header = ",".join(["Label", *COUNTS, *CATEGORIES])
    rest = ",".join(["", *["7"] * 11, *["68fd1e64"] * 26])
    rows = [f"{number % 2},{count},{rest}" for number, count in enumerate(counts)] + [f"0,,{rest}"]
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.csv").write_text("\n".join([header, *rows, ""]))
    report = prepare("criteo_x4", tmp_path, tmp_path / "out")
    assert [file.name for file in report.files] == ["train-0000.parquet", "valid-0000.parquet", "test-0000.parquet"]
    table = pq.read_table(report.files[0])
    assert table.column("I1").to_pylist() == [text_id("I1", str(bucket)) for bucket in [*wanted, 0]]
    assert set(table.column("I2").to_pylist()) == {text_id("I2", "0")}
    assert table.column("label").to_pylist() == [*[0, 1] * 5, 0, 0]
    assert (table.column("C1")[0].as_py(), table.schema.field("C26").type) == (0x68FD1E64, "uint64")

    rare = pq.read_table(prepare("criteo_x4", tmp_path, tmp_path / "rare", min_count=4).files[0])
    often = {-2: 3, 0: 6, 1: 9, 2: 6, 3: 3, 4: 3, 47: 3, 252: 3}  # in the three files together
    ids = [text_id("I1", str(bucket)) if often[bucket] >= 4 else RARE_ID for bucket in [*wanted, 0]]
    assert rare.column("I1").to_pylist() == ids


def test_the_shipped_data_sets_are_those_that_recipes_write(tmp_path: Path) -> None:
    for name, recipe, source in (
        ("criteo_x4", "criteo_x4", write_criteo_x4(tmp_path / "criteo")),
        ("avazu_x4", "avazu", write_avazu_x4(tmp_path / "avazu")),
    ):
        made = dataset_of(prepare(recipe, source, tmp_path / name).dataset)
        shipped = compose_run([f"dataset={name}"]).dataset
        assert isinstance(shipped, ParquetDataset)
        features = {feature.name for feature in shipped.sparse}
        assert features - {"weekend"} == {feature.name for feature in made.sparse}
        assert features < set(pq.read_schema(tmp_path / name / "test-0000.parquet").names)
        assert (shipped.split, shipped.labels, shipped.dense) == (made.split, made.labels, made.dense)


@pytest.mark.slow
def test_leaderboard_settings_learn_and_are_judged_on_test_rows(
    real_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way of the guide, on 45,930 rows; logistic regression has 0.756 on as many."""
    raw = split_challenge(real_data / "criteo" / "criteo_kaggle_mix.tsv.gz", here / "raw")
    prepare("criteo_x4", raw, here / "data" / "criteo_x4", min_count=10)
    words = ["model=deepfm", "model.hidden=[400, 400, 400]", "train.batch_size=500", "eval.every_steps=74"]
    for command in (
        ["train", "conf=criteo_x4", *words, "train.epochs=1", "cluster=embedded", "--run-dir", "run"],
        ["eval", "run", "dataset.split.eval=[test-*.parquet]"],
    ):
        monkeypatch.setattr(sys, "argv", ["persia", *command])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    [lines] = [file.read_text().splitlines() for file in Path("run", "evals").glob("*/metrics.jsonl")]
    found = json.loads(lines[-1])
    assert found["eval_samples"] == 4_593
    assert found["auc"] > 0.74
