"""The comparison with FuxiCTR: both sides get the same samples, and where it is installed, it runs."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from persia_cli.config.compose import compose_run
from scripts import compare_fuxictr
from scripts.rival.samples import LABEL, PART, write_samples
from scripts.rival.settings import Settings


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


@pytest.mark.parametrize("network", compare_fuxictr.NETWORKS)
@pytest.mark.parametrize("plain", [False, True])
def test_the_arguments_of_persia_are_a_run_with_these_settings(network: str, plain: bool, tmp_path: Path) -> None:
    prepare(tmp_path / "data", 100)
    samples = write_samples(tmp_path / "data", tmp_path / "samples")
    settings = Settings(network, 3, hidden=[30, 20], batch=16, row_l2=0.5, dense_l2=0.25, row_clip=0.125, row_beta1=0.5)
    run = compose_run(compare_fuxictr.words_of(samples, settings.plain() if plain else settings, "sync"))
    assert (run.optimizer.embedding.beta1, run.optimizer.dense.beta1) == (0.5, 0.9)
    deep = network not in ("lr", "fm")
    assert (run.mode.kind, run.seed, run.train.batch_size, run.eval.every_steps) == ("sync", 3, 16, 4)
    assert run.embedding.clip_norm == (0.125 if deep and not plain else None)
    if deep:
        assert (list(run.model.hidden), run.model.norm) == ([30, 20], "none" if plain else "batch")
    assert (run.optimizer.embedding.l2, run.optimizer.dense.l2) == ((0, 0) if plain else (0.5, 0.25))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_learn_what_there_is_to_learn(tmp_path: Path) -> None:
    pytest.importorskip("fuxictr")
    prepare(tmp_path / "data", 8000)
    words = [str(tmp_path / "data"), "--networks", "fm", "ffnn", "dcn_v2", "--seeds", "1", "--epochs", "12"]
    compare_fuxictr.main([*words, "--batch", "512", "--record", str(tmp_path / "record")])
    for line in (tmp_path / "record").read_text().splitlines():
        for side, figures in json.loads(line)["sides"].items():
            assert 0.76 < figures["auc"] < 0.84, (line, side)  # 0.8, less by chance
