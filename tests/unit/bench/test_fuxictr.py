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
from scripts.rival.record import Comparison, Record
from scripts.rival.samples import LABEL, PART, Samples, number_ids, write_samples
from scripts.rival.settings import Settings
from scripts.rival.table import HEAD, RULE, line_of


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


def test_ids_are_numbered_and_those_that_training_never_saw_share_one() -> None:
    values, seen = pa.array([7, 9, 7, 2**63, None], pa.uint64()), np.array([True, True, False, False, True])
    codes, most = number_ids(values, seen)
    assert len({codes[0], codes[1], codes[4]}) == 3
    assert (codes[2], codes[3], most) == (codes[0], most, 4)
    assert codes.min() >= 1


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


@pytest.mark.parametrize(
    ("words", "clip"), [([], 40 / 4096), (["--batch", "256"], 40 / 256), (["--batch", "256", "--row-clip", "0"], 0.0)]
)
def test_gradients_of_rows_are_bound_by_what_a_sample_weighs(words: list[str], clip: float) -> None:
    chosen = compare_fuxictr.read_words(["data", *words])
    assert compare_fuxictr.settings_of(chosen, "deepfm", 0).row_clip == pytest.approx(clip)


def made(seed: int, ours: float, theirs: float, seconds: float = 1.0) -> Comparison:
    """Return a comparison with these values of AUC; Persia trained `seconds` for each second of FuxiCTR."""
    sides = {}
    for side, auc, speed in (("persia", ours, 1000 / seconds), ("fuxictr", theirs, 1000.0)):
        sides[side] = {"auc": auc, "log_loss": 0.5, "epochs": 3, "wall_s": 9.0, "samples_per_s": speed}
    return Comparison("clicks", "sync", Settings("fm", seed, hidden=[8]), sides)


def test_a_line_has_means_and_spreads_of_seeds() -> None:
    line = line_of([made(0, 0.70, 0.69, 0.5), made(1, 0.72, 0.70, 0.25), made(2, 0.74, 0.71, 1.0)])
    # Standard deviations 0.02 and 0.01, so a difference of 0.02 ± sqrt(0.0004 + 0.0001) / sqrt(3).
    assert line.startswith("| fm | 3 | 0.7200 ± 0.0200 | 0.7000 ± 0.0100 | +0.0200 ± 0.0129 | 0.5000 / 0.5000 |")
    assert line.endswith("| 2,333 / 1,000 | 2.00 |")
    assert HEAD.count("|") == RULE.count("|") == line.count("|")


def test_one_seed_has_no_spread() -> None:
    assert line_of([made(0, 0.70, 0.71)]).startswith("| fm | 1 | 0.7000 | 0.7100 | -0.0100 |")


def test_what_is_in_the_record_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path / "data", 100)
    trained = []

    def train(samples: Samples, settings: Settings, mode: str, folder: Path) -> dict[str, dict[str, float]]:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append((settings.network, settings.seed, settings.dropout, mode))
        return made(settings.seed, 0.7 + settings.seed / 100, 0.7).sides

    monkeypatch.setattr(compare_fuxictr, "compare", train)
    words = [str(tmp_path / "data"), "--networks", "fm", "lr", "--seeds", "1", "--record", str(tmp_path / "record")]
    compare_fuxictr.main(words)
    before = capsys.readouterr().out
    compare_fuxictr.main(words)
    assert capsys.readouterr().out == before
    with pytest.raises(KeyboardInterrupt):
        compare_fuxictr.main([*words, "--dropout", "0.5"])
    assert trained == [("fm", 0, 0.2, "hybrid"), ("lr", 0, 0.2, "hybrid")]
    trained.clear()
    compare_fuxictr.main([*words, "--networks", "fm", "--seeds", "2"])
    assert trained == [("fm", 1, 0.2, "hybrid")]
    assert "| fm | 2 | 0.7050 ± 0.0071 |" in capsys.readouterr().out


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "record").write_text('{"data": "clicks"}\n')
    with pytest.raises(SystemExit, match="record, line 1 is no comparison"):
        Record(tmp_path / "record")


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
