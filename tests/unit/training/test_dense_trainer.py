"""A rank that only scores has no optimizer."""

import pytest
import torch

from persia_cli.errors import CheckpointError
from persia_cli.training.dense_state import write_files
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.distributed import World
from tests.support.runs import make_run


def test_a_rank_that_only_scores_needs_no_state_of_the_optimizer(tmp_path):
    trained = DenseTrainer(make_run([]), World())
    for weight in trained.network.parameters():
        weight.data += 1
    write_files(trained.files(), tmp_path)
    (tmp_path / "dense_optimizer.safetensors").unlink()
    scoring = DenseTrainer(make_run([]), World(), trains=False)
    scoring.load(tmp_path)
    for mine, other in zip(scoring.network.parameters(), trained.network.parameters(), strict=True):
        assert torch.equal(mine, other)
    with pytest.raises(CheckpointError, match="dense_optimizer"):
        DenseTrainer(make_run([]), World()).load(tmp_path)
