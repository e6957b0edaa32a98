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
from scripts.rival.samples import LABEL, PART, number_ids, write_samples
from scripts.rival.settings import Settings


def prepare(folder: Path, rows: int) -> None:
    """Write what `persia recipe prepare` does: a number, and an id that says much about the label."""
    rng = np.random.default_rng(5)
    ids = rng.integers(10**18, 10**18 + 30, rows).astype(np.uint64)
    label = (rng.random(rows) < np.where(ids % 2 == 0, 0.8, 0.2)).astype(np.int8)
    folder.mkdir()
    columns = {"label": label, "price": np.log1p(rng.exponential(9.0, rows)).astype(np.float32), "item": ids}
    pq.write_table(pa.table(columns | {"shop": rng.integers(0, 5, rows).astype(np.uint64)}), folder / "a.parquet")
    described = {"kind": "parquet", "path": ".", "labels": ["label"], "dense": ["price"], "sparse": ["item", "shop"]}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(described))


def test_ids_are_numbered_and_those_that_training_never_saw_share_one() -> None:
    values, seen = pa.array([7, 9, 7, 2**63, None], pa.uint64()), np.array([True, True, False, False, True])
    codes, most = number_ids(values, seen)
    assert len({codes[0], codes[1], codes[4]}) == 3
    assert (codes[2], codes[3], most) == (codes[0], most, 4)
    assert codes.min() >= 1


def test_a_fifth_of_the_rows_ends_training_and_another_is_for_the_figures(tmp_path: Path) -> None:
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
def test_what_persia_is_told_is_a_run_with_these_settings(network: str, plain: bool, tmp_path: Path) -> None:
    prepare(tmp_path / "data", 100)
    samples = write_samples(tmp_path / "data", tmp_path / "samples")
    settings = Settings(network, 3, hidden=[30, 20], batch=16, row_l2=0.5, dense_l2=0.25, row_clip=0.125)
    run = compose_run(compare_fuxictr.words_of(samples, settings.plain() if plain else settings, "sync"))
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
    compare_fuxictr.main([*words, "--batch", "512", "--json", str(tmp_path / "out.json")])
    for network, rounds in json.loads((tmp_path / "out.json").read_text()).items():
        for side, figures in rounds[0].items():
            assert 0.76 < figures["auc"] < 0.84, (network, side)  # 0.8, less by chance
