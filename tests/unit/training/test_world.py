"""Several ranks: together they train the model of one rank, and report it when they cannot."""

import subprocess
import sys

import pytest
import torch

from persia_cli.config.schema import DenseSgd
from persia_cli.errors import WireError
from persia_cli.training.distributed import World
from tests.unit.model.kinds import KINDS
from tests.unit.training import ranks

SGD = DenseSgd(kind="sgd", lr=0.1)


@pytest.mark.slow
@pytest.mark.processes
def test_two_ranks_train_every_network_as_one_does(tmp_path):
    one = ranks.every_network(World())
    assert len({name.partition("/")[0] for name in one}) > len(KINDS)
    ranks.assert_one_model(ranks.on_ranks(ranks.every_network, 2, tmp_path), one)


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_share_the_statistics_of_a_batch(tmp_path, size):
    """The last step has samples for rank 0 alone."""
    one = ranks.train(World(), module=ranks.normalised())
    assert any("running_var" in name for name in one)
    ranks.assert_one_model(ranks.on_ranks(ranks.normalise, size, tmp_path), one)


@pytest.mark.processes
def test_a_rank_that_ends_is_reported(tmp_path):
    [left] = ranks.on_ranks(ranks.leave, 2, tmp_path)
    assert str(left["error"]).startswith("LostRankError: nn-worker-0 failed ")
    assert "another NN worker has ended" in str(left["error"])


def test_ranks_that_do_not_come_are_waited_for_so_long(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with pytest.raises(WireError, match=r"nn-worker-0 could not join the group of 2 NN workers in 0.2 s"):
        World(0, 2, torch.distributed.FileStore(f"{tmp_path}/store", 2), timeout_s=0.2)


@pytest.mark.processes
@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["launch-role", "nobody"], 2)])
def test_a_process_that_was_in_a_group_ends_before_torch_is_torn_down(words, code):
    """Observed: std::terminate in a process that had finished its work, which a driver treats as a failed rank."""
    program = (
        "import atexit, sys; from persia_cli.training import distributed; distributed._joined = True\n"
        "atexit.register(print, 'torn down'); from persia_cli.main import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, "torn down" in ended.stdout) == (code, False)
