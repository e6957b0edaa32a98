"""Every network that continues from its saved state computes, to the bit, the same as without a stop."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from persia_cli.config.schema import Run
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import location_of
from persia_cli.training.dense_state import write_files
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.distributed import World
from persia_cli.training.inputs import Samples, group_shapes
from persia_cli.training.step import Scored
from tests.support.runs import make_run
from tests.unit.model.kinds import AUXILIARY, KINDS, NEXT_ITEM, SEQUENTIAL, name, regularised
from tests.unit.training.batches import group_rows

STEPS, HALF, SIZE = 4, 2, 24
ADAM = {"kind": "adam", "lr": 0.05}

Results = list[tuple[NDArray[np.generic], ...]]
"""Logits, losses, and gradients of rows of each step."""


def run_of(model) -> Run:
    """A run of the network on the features that it names."""
    names = ["f0"] if model.kind in NEXT_ITEM else ["f0", "f1"]
    clicked = [{"name": "clicked", "table": "f0", "pooling": "none", "max_length": 3}]
    return make_run(
        [*names, *(clicked if model.kind in SEQUENTIAL else [])],
        dataset={"dense": [] if model.kind in NEXT_ITEM else ["d0", "d1"]},
        model=model.model_dump(),
        optimizer={"embedding": {"kind": "sgd", "lr": 0.1}, "dense": ADAM},
        train={"batch_size": SIZE},
    )


def trained(trainer: DenseTrainer, run: Run, first: int, last: int) -> Results:
    groups, dense = group_shapes(embedding_layout(run)), len(run.dataset.dense)
    found: Results = []
    for step in range(first, last):
        draw = np.random.default_rng(step)
        labels = draw.integers(0, 2, (SIZE, 1)).astype(np.float32)
        samples = Samples(
            draw.standard_normal((SIZE, dense)).astype(np.float32), labels, None, [float(SIZE)] * labels.shape[1]
        )
        gradients: list[NDArray[np.uint8]] = []
        scores: list[Scored] = []
        rows = [group_rows(group, SIZE, seed=step) for group in groups]
        trainer.train(step, samples, rows, gradients.extend, scores.append)
        found.append((scores[0].logits, scores[0].loss_sum, *gradients))
    return found


@pytest.mark.parametrize("change", [lambda model: model, regularised], ids=["plain", "regularised"])
@pytest.mark.parametrize("model", [*KINDS, *AUXILIARY], ids=name)
def test_it_has_the_bits_of_an_undisturbed_one(model, change, tmp_path: Path) -> None:
    run = run_of(change(model))
    straight = DenseTrainer(run, World())
    expected = trained(straight, run, 0, STEPS)

    before = DenseTrainer(run, World())
    found = trained(before, run, 0, HALF)
    write_files(before.files(), tmp_path)
    after = DenseTrainer(run, World())
    after.load(location_of(str(tmp_path)))
    found += trained(after, run, HALF, STEPS)

    for own, other in zip(found, expected, strict=True):
        for mine, theirs in zip(own, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    states = [each.network.state_dict() for each in (after, straight)]
    for key, value in states[1].items():
        np.testing.assert_array_equal(states[0][key].numpy(), value.numpy(), err_msg=key)
