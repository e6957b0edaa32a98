"""The comparison with FuxiCTR: both sides get the same samples, and where it is installed, it runs."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from persia_cli.config.compose import compose_run
from scripts.measure import __main__
from scripts.measure.comparisons import fuxictr
from scripts.measure.comparisons.fuxictr import LABEL, PART, Settings, write_samples


def prepare(folder: Path, rows: int) -> None:
    """Write data as `persia recipe prepare` does: a number, and an id that correlates with the label."""
    rng = np.random.default_rng(5)
    ids = rng.integers(10**18, 10**18 + 30, rows).astype(np.uint64)
    label = (rng.random(rows) < np.where(ids % 2 == 0, 0.8, 0.2)).astype(np.int8)
    folder.mkdir()
    columns = {"label": label, "price": np.log1p(rng.exponential(9.0, rows)).astype(np.float32), "item": ids}
    pq.write_table(pa.table(columns | {"shop": rng.integers(0, 5, rows).astype(np.uint64)}), folder / "a.parquet")
    described = {"kind": "parquet", "path": ".", "labels": ["label"], "dense": ["price"], "sparse": ["item", "shop"]}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(described))


def test_a_fifth_of_the_rows_ends_training_and_another_is_for_metrics(tmp_path: Path) -> None:
    prepare(tmp_path / "data", 100)
    samples = write_samples(tmp_path / "data", tmp_path / "samples")
    train, test = pq.read_table(samples.train), pq.read_table(samples.test)
    assert train[PART].to_pylist().count("train") == 60
    assert train[PART].to_pylist().count("eval") == len(test) == 20
    given = pq.read_table(tmp_path / "data" / "a.parquet")["label"].to_pylist()
    assert test[LABEL].to_pylist() == given[4::5]
    assert [*samples.ids] == ["price", "item", "shop"]
    for name, ids in samples.ids.items():
        assert 1 <= min(train[name].to_pylist()) <= max(test[name].to_pylist()) < ids


@pytest.mark.parametrize("network", fuxictr.NETWORKS)
@pytest.mark.parametrize("norm", [False, True])
def test_the_arguments_of_persia_are_a_run_with_these_settings(network: str, norm: bool, tmp_path: Path) -> None:
    prepare(tmp_path / "data", 100)
    samples = write_samples(tmp_path / "data", tmp_path / "samples")
    settings = Settings(network, 3, hidden=(30, 20), batch=16, norm=norm)
    run = compose_run(fuxictr.overrides_of(samples, settings, "sync"))
    assert (run.optimizer.embedding.beta1, run.optimizer.dense.beta1) == (0.0, 0.9)
    deep = network not in ("lr", "fm")
    assert (run.mode.kind, run.seed, run.train.batch_size, run.eval.every_steps) == ("sync", 3, 16, 4)
    assert run.embedding.clip_norm == (2.5 if deep and norm else None)
    if deep:
        assert (list(run.model.hidden), run.model.norm) == ([30, 20], "batch" if norm else "none")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_learn_what_there_is_to_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fuxictr")
    prepare(tmp_path / "data", 8000)
    words = ["fuxictr", str(tmp_path / "data"), "--networks", "fm", "dcn_v2", "--rounds", "1", "--epochs", "12"]
    words += ["--batch", "512", "--json", "--record", str(tmp_path / "record")]
    printed = []
    for _ in range(2):  # the second time, the record has all of it
        assert __main__.main(words) == 0
        printed.append(json.loads(capsys.readouterr().out)["results"])
    assert [result["sides"] for result in printed[0]] == [result["sides"] for result in printed[1]]
    for result in printed[0]:
        for side in result["sides"] if result["name"].endswith(": AUC") else []:
            assert 0.76 < side["median"] < 0.84, result  # 0.8, less by chance
