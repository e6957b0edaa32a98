"""One rank's step against a plain torch model, its reproducibility, and its refusals."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from persia_cli.config.schema import Poisson
from persia_cli.errors import UserError
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.uncertainty import learn_uncertainty
from persia_cli.training.inputs import Samples
from persia_cli.training.loss import Objective
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.training.step import DenseStep
from persia_cli.wire.messages import GroupRows
from tests.unit.training.batches import (
    DENSE,
    GROUPS,
    OPTIMIZERS,
    TASKS,
    dense_step,
    inputs,
    leaves,
    network,
    plain_batch,
    plain_losses,
)


@pytest.mark.parametrize("config", OPTIMIZERS, ids=lambda config: config.kind)
@pytest.mark.parametrize("weighted", [False, True])
def test_steps_are_those_of_a_plain_torch_model(config, weighted):
    ours, plain = dense_step(config=config), network()
    optimizer = dense_optimizer(config, plain)
    for step in range(4):
        batch, groups = inputs(step, 16, weighted)
        result = ours.train(step, batch, groups)
        ours.update()

        optimizer.zero_grad()
        rows = leaves(groups)
        features = plain_batch(rows, batch, groups)
        pooled = [feature for group in features.groups for feature in group.unbind(1)]
        logits = plain.network(torch.cat([features.dense, *pooled], dim=1))
        losses = plain_losses(logits, batch)
        (losses.mean(1).sum() / batch.weight_totals[0]).backward()
        optimizer.step()

        assert result.logits == pytest.approx(logits.detach().numpy(), abs=1e-5)
        assert result.loss_sum == pytest.approx(losses.sum(0).detach().numpy(), rel=1e-5)
        for gradient, leaf in zip(result.gradients, rows, strict=True):
            assert gradient == pytest.approx(leaf.grad.numpy(), abs=1e-6)
    for mine, other in zip(ours.module.parameters(), plain.parameters(), strict=True):
        assert mine.detach().numpy() == pytest.approx(other.detach().numpy(), abs=2e-5)


def test_evaluation_scores_alike_and_changes_nothing():
    step = dense_step()
    batch, groups = inputs(0, 8)
    before = {name: value.clone() for name, value in step.module.state_dict().items()}
    scored = step.evaluate(0, batch, groups)
    result = step.train(0, batch, groups)
    assert np.array_equal(scored.logits, result.logits)
    assert np.array_equal(scored.loss_sum, result.loss_sum)
    assert scored.loss_sum.dtype == np.float64
    assert all(torch.equal(value, before[name]) for name, value in step.module.state_dict().items())


def test_a_share_without_samples_has_no_loss_and_zero_gradients():
    step = dense_step()
    empty = Samples(np.empty((0, DENSE), np.float32), np.empty((0, TASKS), np.float32), None, [64.0] * TASKS)
    groups = [GroupRows([], np.empty(0, np.int32), None) for _ in GROUPS]
    result = step.train(3, empty, groups)
    assert result.loss_sum.tolist() == [0.0] * TASKS
    assert [gradient.shape for gradient in result.gradients] == [(0, 4), (0, 2)]
    assert all(not parameter.grad.any() for parameter in step.module.parameters())


class Dropping(torch.nn.Module):
    """Reads the first group only, through dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(12, TASKS)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        return self.layer(functional.dropout(batch.groups[0].flatten(1), 0.5, self.training))


def test_rows_the_network_does_not_read_get_zero_gradients():
    gradients = dense_step(Dropping()).train(0, *inputs(0, 8)).gradients
    assert gradients[0].any()
    assert gradients[1].shape == (20, 2)
    assert not gradients[1].any()


def test_random_numbers_follow_from_seed_and_step_alone():
    batch, groups = inputs(0, 32)
    fresh = [dense_step(Dropping()) for _ in range(3)]
    state = torch.get_rng_state()
    whole = [step.train(number, batch, groups).logits for number, step in enumerate(fresh)]
    assert torch.equal(torch.get_rng_state(), state)
    resumed = dense_step(Dropping())
    torch.rand(5)
    assert np.array_equal(resumed.train(2, batch, groups).logits, whole[2])
    assert not np.array_equal(whole[0], whole[1])
    assert not np.array_equal(dense_step(Dropping(), seed=8).train(2, batch, groups).logits, whole[2])


def spoilt(where: str) -> tuple[DenseStep, Samples, list[GroupRows]]:
    step, (batch, groups) = dense_step(), inputs(0, 8)
    if where == "dense":
        dense = batch.dense.copy()
        dense[3, 1] = np.nan
        batch = Samples(dense, batch.labels, batch.weights, batch.weight_totals)
    elif where == "rows":
        infinite = np.full((20, 2), np.inf, np.float32).view(np.uint8)
        groups[1] = GroupRows([infinite], groups[1].inverse, groups[1].offsets)
    elif where == "weights":
        torch.nn.init.constant_(next(step.module.parameters()), torch.nan)
    elif where == "variances":
        learn_uncertainty(step.module, 1)
        torch.nn.init.constant_(step.module.get_parameter("task_uncertainty.log_variances"), -1000.0)
    else:
        for parameter in step.module.parameters():
            torch.nn.init.constant_(parameter, 1e30)
    return step, batch, groups


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("dense", "dense feature number 1 .* has NaN"),
        ("rows", "rows .* lower optimizer.embedding.lr"),
        ("weights", "dense weights .* lower optimizer.dense.lr"),
        ("overflow", "overflows on finite inputs"),
        ("variances", "a variance that train.task_weights=uncertainty learns .* lower optimizer.dense.lr"),
    ],
)
def test_a_loss_that_is_not_finite_stops_with_its_cause(where, sentence):
    step, batch, groups = spoilt(where)
    with pytest.raises(UserError, match=f"loss of step 12 on nn-worker-0 is not finite: .*{sentence}"):
        step.train(12, batch, groups)
    with pytest.raises(UserError, match=f"loss of evaluation step 4 .*{sentence}"):
        step.evaluate(4, batch, groups)


def test_finite_outputs_with_an_infinite_loss_are_named_by_size():
    step = dense_step(objective=Objective([Poisson(kind="poisson")] * TASKS))
    with torch.no_grad():
        list(step.module.parameters())[-1].fill_(200.0)
    said = r"loss of step 0 .* the outputs, up to 2\d\d, .* \(poisson\); begin nearer .*model.output_bias=base_rate"
    with pytest.raises(UserError, match=said):
        step.train(0, *inputs(0, 8))
