"""Auxiliary losses of networks in a step: weighted as their samples, divided as the loss, and absent in evaluation."""

from pathlib import Path

import numpy as np
import pytest
import torch

from persia_cli.config.schema import Bce, Focal
from persia_cli.errors import ConfigError, PersiaError
from persia_cli.model.inputs import ModelBatch
from persia_cli.training.distributed import World
from persia_cli.training.inputs import Samples, StepParts
from persia_cli.training.loss import Objective
from persia_cli.training.step import DenseStep
from persia_cli.wire.messages import GroupRows
from tests.support.losses import batch_loss
from tests.unit.model.kinds import AUXILIARY
from tests.unit.training import ranks
from tests.unit.training.auxiliary import Guessing
from tests.unit.training.batches import dense_step, inputs, leaves, plain_batch, share

SIZE = 18
LOSSES = (Bce(kind="bce", weight=3.0), Focal(kind="focal"))
SHARES = torch.tensor([0.75, 0.25])
"""Of the tasks in the loss."""


def step_of(module: torch.nn.Module, **changes) -> DenseStep:
    return dense_step(module, objective=Objective(LOSSES), **changes)


def gradients(step: DenseStep, result) -> list[np.ndarray]:
    return [*result.gradients, *(weight.grad.numpy().copy() for weight in step.module.parameters())]


def by_torch(module: torch.nn.Module, batch: Samples, groups: list[GroupRows]) -> tuple[float, list[np.ndarray]]:
    """The loss of a batch, and its gradients by rows and weights: the mean of labels and of the auxiliary losses."""
    rows = leaves(groups)
    logits, auxiliary = module.train()(plain_batch(rows, batch, groups))
    weights = torch.from_numpy(batch.weights)
    loss = batch_loss(LOSSES, logits, torch.tensor(batch.labels), weights)
    for sample in range(SIZE):
        for task, share_of_task in enumerate(SHARES):
            loss = loss + share_of_task * weights[sample] / weights.sum() * auxiliary[sample, task]
    loss.backward()
    return loss.item(), [part.grad.numpy() for part in [*rows, *module.parameters()]]


def test_loss_and_gradients_are_those_of_plain_torch():
    step, (batch, groups) = step_of(Guessing()), inputs(0, SIZE)
    result = step.train(0, batch, groups)
    loss, expected = by_torch(Guessing(), batch, groups)
    assert result.loss_sum @ SHARES.double().numpy() / batch.weight_totals[0] == pytest.approx(loss, rel=1e-6)
    for ours, theirs in zip(gradients(step, result), expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
        assert theirs.any()


@pytest.mark.parametrize("columns", ["one for each task", "one for all"])
def test_a_loss_of_the_sample_counts_once_however_many_tasks_there_are(columns):
    class Constant(Guessing):
        def forward(self, batch: ModelBatch):
            logits, losses = super().forward(batch)
            ones = torch.full_like(losses, 2.5)
            return 0.0 * logits, ones if columns == "one for each task" else ones[:, :1]

    batch, groups = inputs(0, SIZE)
    result = step_of(Constant()).train(0, batch, groups)
    plain = batch_loss(LOSSES, torch.zeros(SIZE, 2), torch.tensor(batch.labels), torch.from_numpy(batch.weights))
    assert result.loss_sum @ SHARES.double().numpy() / batch.weight_totals[0] == pytest.approx(
        plain.item() + 2.5, rel=1e-6
    )


def test_parts_and_shares_of_ranks_add_up_to_the_batch():
    whole, cut = step_of(Guessing()), step_of(Guessing(), parts=StepParts(4, 5))
    batch, groups = inputs(0, SIZE)
    at_once = whole.train(0, batch, groups)
    expected = gradients(whole, at_once)
    in_parts = cut.train(0, batch, groups)
    shares = [share(batch, groups, *bounds) for bounds in ((0, 7), (7, SIZE), (SIZE, SIZE))]
    of_ranks = [step_of(Guessing()) for _ in shares]
    results = [step.train(0, *own) for step, own in zip(of_ranks, shares, strict=True)]
    found = [gradients(step, result) for step, result in zip(of_ranks, results, strict=True)]
    assert in_parts.loss_sum == pytest.approx(at_once.loss_sum, rel=1e-6)
    assert sum(result.loss_sum for result in results) == pytest.approx(at_once.loss_sum, rel=1e-6)
    for theirs, parts, each in zip(expected, gradients(cut, in_parts), zip(*found, strict=True), strict=True):
        assert parts == pytest.approx(theirs, abs=1e-6)
        assert sum(each) == pytest.approx(theirs, abs=1e-6)


def test_evaluation_does_not_use_it():
    step, (batch, groups) = step_of(Guessing()), inputs(0, SIZE)
    scored = step.evaluate(0, batch, groups)
    torch.nn.init.constant_(step.module.guess.weight, torch.nan)
    again = step.evaluate(0, batch, groups)
    logits = torch.from_numpy(scored.logits)
    plain = batch_loss(LOSSES, logits, torch.tensor(batch.labels), torch.from_numpy(batch.weights))
    assert np.array_equal(again.logits, scored.logits)
    assert scored.loss_sum @ SHARES.double().numpy() / batch.weight_totals[0] == pytest.approx(plain.item(), rel=1e-6)
    with pytest.raises(PersiaError, match="dense weights have become NaN"):
        step.train(0, batch, groups)


def test_weights_that_it_alone_depends_on_can_be_trained_by_several_ranks():
    step_of(Guessing()).rehearse()
    silent = Guessing()
    silent.forward = lambda batch: Guessing.forward(silent, batch)[0]
    with pytest.raises(ConfigError, match=r"do not depend on these parameters of the model: guess.weight, guess.bias"):
        step_of(silent).rehearse()


@pytest.mark.slow
@pytest.mark.processes
def test_two_ranks_compute_what_one_does_in_two_parts(tmp_path: Path):
    """Negatives of DIEN are of the samples that a network sees at once, which are the same then."""
    one = ranks.networks(World(), AUXILIARY, StepParts(2, ranks.SIZE // 2))
    ranks.assert_one_model(ranks.on_ranks(ranks.auxiliary, 2, tmp_path), one)
