"""The comparison with TorchRec: the runs that its arguments mean, and where it is installed, the same arithmetic."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from persia_cli.bench.baselines.trainers import TorchBaseline, settings_kept
from persia_cli.bench.portions import RingPortions, portion_shape
from persia_cli.bench.result import Result, Side
from persia_cli.config.compose import compose_run
from scripts import compare_torchrec
from tests.support.small import WORDS

INSTALLED = "without TorchRec, which needs a separate environment"


@pytest.mark.parametrize("dim", compare_torchrec.DIMS)
def test_arguments_are_runs_whose_tables_take_the_same_memory(dim: int) -> None:
    first = compare_torchrec.run_of(16, "adagrad", "float32", [])
    chosen = compare_torchrec.read_words(["--source", "loader", "--", "train.threads=2", "train.batch_size=512"])
    run = compare_torchrec.run_of(dim, "rowwise_adagrad", "bfloat16", chosen.words)
    assert (first.model.kind, first.cluster.kind, first.train.batch_size) == ("dlrm", "local", 4096)
    assert (run.model.dim, run.optimizer.embedding.kind, run.train.precision) == (dim, "rowwise_adagrad", "bfloat16")
    assert (run.train.threads, run.train.batch_size, chosen.source) == (2, 512, "loader")
    values = [sum(each.dataset.generator.cardinalities) * each.model.dim for each in (run, first)]
    assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_ratios_are_of_the_turns_of_one_round() -> None:
    sides = [Side(name, rates[0], 0.0, 9.0, rates=rates) for name, rates in (("a", [8.0, 2.0]), ("b", [4.0, 4.0]))]
    run = compare_torchrec.run_of(16, "adagrad", "float32", [])
    compared = compare_torchrec.Compared(run, Result("ring", "criteo", "samples/s", sides))
    assert compared.ratios == [2.0, 0.5]
    head, _, line = compare_torchrec.markdown([compared])
    assert line.count("|") == head.count("|")


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    assert compare_torchrec.main(["--dims", "16", "--optimizers", "adagrad", "--precisions", "float32"]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "TorchRec" in errors[0]
    assert "scripts/compare_torchrec.py" in errors[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torchrec_trains_as_a_sparse_embedding_bag() -> None:
    pytest.importorskip("torchrec", reason=INSTALLED, exc_type=ImportError)
    from persia_cli.bench.baselines.torchrec_trainer import TorchRecBaseline

    run = compose_run([*WORDS, "optimizer=adagrad", "optimizer.embedding.lr=0.1", "optimizer.embedding.eps=0.01"])
    shape = portion_shape(run)
    with settings_kept(), closing(TorchRecBaseline(run, shape.sizes)) as fused:
        plain = TorchBaseline(run, shape.sizes)
        for weights, rows in zip(fused.weights(), plain._bag.weight.detach().split(shape.sizes), strict=True):
            weights.copy_(rows)
        portions = RingPortions(run, shape, 4)
        batches = [portions.take() for _ in range(12)]
        expected = [plain.train(each) for each in batches]
        assert [fused.train(each) for each in batches] == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(torch.cat(fused.weights()), plain._bag.weight.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_comparison_runs() -> None:
    pytest.importorskip("fbgemm_gpu", reason=INSTALLED, exc_type=ImportError)
    small = ["dataset=synthetic", "dataset.generator.cardinalities=[20,300]", "train.batch_size=32"]
    words = ["--dims", "16", "--precisions", "float32", "--rounds", "2", "--steps", "4", "--ring", "2", "--", *small]
    root = Path(compare_torchrec.__file__).parents[1]
    command = [sys.executable, "scripts/compare_torchrec.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, cwd=root)
    assert done.returncode == 0, done.stderr
    lines = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| dim")]
    assert lines == ["dim 16, adagrad, float32", "dim 16, rowwise_adagrad, float32"]
