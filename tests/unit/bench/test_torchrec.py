"""The comparison with TorchRec: the runs that its arguments mean, and where it is installed, the same arithmetic."""

import sys
from argparse import ArgumentParser
from contextlib import closing

import pytest
import torch

from persia_cli.bench.baselines import TorchBaseline, settings_kept
from persia_cli.bench.portions import RingPortions, portion_shape
from persia_cli.bench.result import Result, Side
from persia_cli.config.compose import compose_run
from scripts.measure import __main__
from scripts.measure.comparisons import torchrec
from tests.support.small import WORDS

INSTALLED = "without TorchRec, which needs a separate environment"


@pytest.mark.parametrize("dim", torchrec.DIMS)
def test_arguments_are_runs_whose_tables_take_the_same_memory(dim: int) -> None:
    parser = ArgumentParser()
    torchrec.options(parser)
    first = torchrec.run_of(16, "adagrad", "float32", [])
    given = parser.parse_args(["--source", "loader", "--", "train.threads=2", "train.batch_size=512"])
    run = torchrec.run_of(dim, "rowwise_adagrad", "bfloat16", given.overrides)
    assert (first.model.kind, first.cluster.kind, first.train.batch_size) == ("dlrm", "local", 4096)
    assert (run.model.dim, run.optimizer.embedding.kind, run.train.precision) == (dim, "rowwise_adagrad", "bfloat16")
    assert (run.train.threads, run.train.batch_size, given.source) == (2, 512, "loader")
    values = [sum(each.dataset.generator.cardinalities) * each.model.dim for each in (run, first)]
    assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_ratios_are_of_the_turns_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [Side(name, rates[0], 0.0, 9.0, rates=rates) for name, rates in (("a", [8.0, 2.0]), ("b", [4.0, 4.0]))]
    monkeypatch.setattr(torchrec, "compare", lambda *given: iter([Result("ring", "criteo", "samples/s", sides)]))
    parser = ArgumentParser()
    torchrec.options(parser)
    given = parser.parse_args(["--dims", "16", "--optimizers", "adagrad", "--precisions", "float32"])
    given.rounds, given.quick = 2, False
    [result] = torchrec.measure(given, print)
    assert result.sides[0].ratios == {"b": 1.25}
    assert result.note == "0.500 to 2.000 x"


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    chosen = ["--dims", "16", "--optimizers", "adagrad", "--precisions", "float32"]
    assert __main__.main(["torchrec", *chosen]) == 2
    [error] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "TorchRec cannot be imported" in error
    assert "python -m scripts.measure torchrec --help" in error


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torchrec_trains_as_a_sparse_embedding_bag() -> None:
    pytest.importorskip("torchrec", reason=INSTALLED, exc_type=ImportError)
    run = compose_run([*WORDS, "optimizer=adagrad", "optimizer.embedding.lr=0.1", "optimizer.embedding.eps=0.01"])
    shape = portion_shape(run)
    with settings_kept(), closing(torchrec.TorchRecBaseline(run)) as fused:
        plain = TorchBaseline(run)
        for weights, rows in zip(fused.weights(), plain._bag.weight.detach().split(shape.sizes), strict=True):
            weights.copy_(rows)
        portions = RingPortions(run, shape, 4)
        batches = [portions.next_portion() for _ in range(12)]
        expected = [plain.train(each) for each in batches]
        assert [fused.train(each) for each in batches] == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(torch.cat(fused.weights()), plain._bag.weight.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_comparison_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fbgemm_gpu", reason=INSTALLED, exc_type=ImportError)
    small = ["dataset=synthetic", "dataset.generator.cardinalities=[20,300]", "train.batch_size=32"]
    assert __main__.main(["torchrec", "--dims", "16", "--precisions", "float32", "--quick", "--", *small]) == 0
    printed = capsys.readouterr().out
    assert "dim 16, adagrad, float32" in printed
    assert "dim 16, rowwise_adagrad, float32" in printed
