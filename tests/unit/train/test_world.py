"""Several ranks: together they train the model of one rank, and report it when they cannot."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from persia_cli.config.schema import DenseSgd
from persia_cli.errors import ConfigError, WireError
from persia_cli.train.distributed import World, refuse_local_statistics
from persia_cli.train.optimizer import dense_optimizer
from persia_cli.train.step import DenseStep
from tests.unit.model.kinds import KINDS
from tests.unit.train import networks_on_ranks, ranks
from tests.unit.train.batches import DENSE, GROUPS, settings

SGD = DenseSgd(kind="sgd", lr=0.1)


def processes(target, size: int, directory: Path) -> None:
    """Run `target` once per rank and wait for all."""
    context = multiprocessing.get_context("spawn")
    words = [(target, rank, size, str(directory)) for rank in range(size)]
    started = [context.Process(target=ranks.run_to_the_end, args=each) for each in words]
    for process in started:
        process.start()
    try:
        for process in started:
            process.join(120)
        assert [process.exitcode for process in started] == [0] * size
    finally:
        for process in started:
            process.kill()
            process.join()


@pytest.mark.processes
def test_two_ranks_train_the_model_of_one(tmp_path):
    processes(ranks.run, 2, tmp_path)
    first, second = (np.load(tmp_path / f"rank-{rank}.npz") for rank in range(2))
    one = ranks.train(World())
    for name, expected in one.items():
        if name.startswith("weight/"):
            # Rank 1 began from another seed: equal weights show that rank 0's were shared.
            assert np.array_equal(first[name], second[name])
            assert first[name] == pytest.approx(expected, abs=1e-6)
        else:
            assert first[name] + second[name] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert not second[f"gradient/{ranks.STEPS - 1}/0"].any()


@pytest.mark.slow
@pytest.mark.processes
def test_two_ranks_train_every_network_as_one_does(tmp_path):
    processes(networks_on_ranks.run, 2, tmp_path)
    first, second = (np.load(tmp_path / f"rank-{rank}.npz") for rank in range(2))
    one = networks_on_ranks.every_network(World())
    assert len({name.partition("/")[0] for name in one}) > len(KINDS)
    for name, expected in one.items():
        if "/weight/" in name:
            assert np.array_equal(first[name], second[name]), name
            assert first[name] == pytest.approx(expected, rel=1e-4, abs=2e-6), name
        else:
            assert first[name] + second[name] == pytest.approx(expected, rel=1e-4, abs=2e-6), name


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_share_the_statistics_of_a_batch(tmp_path, size):
    """The last step has samples for rank 0 alone."""
    processes(ranks.normalise, size, tmp_path)
    found = [np.load(tmp_path / f"rank-{rank}.npz") for rank in range(size)]
    one = ranks.train(World(), module=ranks.normalised())
    assert any("running_var" in name for name in one)
    for name, expected in one.items():
        if name.startswith("weight/"):
            assert all(np.array_equal(found[0][name], other[name]) for other in found[1:])
            assert found[0][name] == pytest.approx(expected, rel=1e-4, abs=1e-5)
        else:
            assert sum(each[name] for each in found) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.processes
def test_three_ranks_resume_to_the_bit(tmp_path):
    processes(ranks.resume, 3, tmp_path)
    found = np.load(tmp_path / "rank-2.npz")
    weights = [name for name in found if name.startswith("weight/")]
    assert weights
    assert all(np.array_equal(found[name], found[f"resumed/{name}"]) for name in weights)


@pytest.mark.processes
def test_a_rank_that_ends_is_reported(tmp_path):
    processes(ranks.leave, 2, tmp_path)
    assert (tmp_path / "error.txt").read_text().startswith("LostRankError: nn-worker-0 failed ")
    assert "another NN worker has ended" in (tmp_path / "error.txt").read_text()


def test_ranks_that_do_not_come_are_waited_for_so_long(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with pytest.raises(WireError, match=r"nn-worker-0 could not join the group of 2 NN workers in 0.2 s"):
        World(0, 2, torch.distributed.FileStore(f"{tmp_path}/store", 2), timeout_s=0.2)


def test_one_rank_has_no_group():
    world, module = World(), torch.nn.Linear(2, 1)
    assert world.wrap(module) is module
    assert not torch.distributed.is_initialized()
    world.close()


def test_several_ranks_need_a_place_to_meet():
    with pytest.raises(ValueError, match="needs a store to meet in"):
        World(0, 2)


@pytest.mark.parametrize("layer", [torch.nn.BatchNorm1d(4), torch.nn.LazyBatchNorm1d()])
def test_batch_norm_of_one_rank_alone_is_refused(layer):
    with pytest.raises(ConfigError, match=r"layer 1 \(.*BatchNorm1d\) .* cluster.nn_workers=1"):
        refuse_local_statistics(torch.nn.Sequential(torch.nn.Linear(3, 4), layer))


def test_synchronised_and_layer_norm_pass():
    refuse_local_statistics(torch.nn.Sequential(torch.nn.SyncBatchNorm(4), torch.nn.LayerNorm(4)))


def test_parameters_without_gradient_are_named():
    class Pretended(World):
        """Two ranks as far as checks go."""

        def __init__(self) -> None:
            super().__init__()
            self.size = 2

    module = ranks.Idle()
    with pytest.raises(ConfigError, match="do not depend on these parameters of the model: spare; "):
        DenseStep(module, dense_optimizer(SGD, module), GROUPS, Pretended(), DENSE, 0, settings())


@pytest.mark.processes
@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["launch-role", "nobody"], 2)])
def test_a_process_that_was_in_a_group_ends_before_torch_is_torn_down(words, code):
    """Observed: std::terminate in a process that had finished its work, which a launcher treats as a failed rank."""
    program = (
        "import atexit, sys; from persia_cli.train import distributed; distributed._joined = True\n"
        "atexit.register(print, 'torn down'); from persia_cli.main import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, "torn down" in ended.stdout) == (code, False)
