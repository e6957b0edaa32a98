"""A rank that only scores: no optimizer, and so without torch's compiler."""

import subprocess
import sys

import pytest

from persia_cli.errors import CheckpointError
from persia_cli.train.dense_state import write_files
from persia_cli.train.dense_trainer import DenseTrainer
from persia_cli.train.distributed import World
from tests.support.runs import make_run

SCORE = """
import sys
from pathlib import Path
from persia_cli.train.distributed import World
from persia_cli.train.dense_trainer import DenseTrainer
from tests.support.runs import make_run

rank = DenseTrainer(make_run([]), World(), trains=False)
rank.load(Path(sys.argv[1]))
print("torch._dynamo" in sys.modules, sum(weight.sum().item() for weight in rank._module.parameters()))
"""


def test_a_rank_that_only_scores_reads_the_weights_and_builds_no_optimizer(tmp_path):
    trained = DenseTrainer(make_run([]), World())
    for weight in trained._module.parameters():
        weight.data += 1
    write_files(trained.files(), tmp_path)
    (tmp_path / "dense_optimizer.safetensors").unlink()
    done = subprocess.run([sys.executable, "-c", SCORE, str(tmp_path)], capture_output=True, text=True, check=True)
    compiler, total = done.stdout.split()
    assert compiler == "False"
    assert float(total) == sum(weight.sum().item() for weight in trained._module.parameters())
    with pytest.raises(CheckpointError, match="dense_optimizer"):
        DenseTrainer(make_run([]), World()).load(tmp_path)
