"""Dense optimizers are torch's, with every setting of the config, and each step has its learning rate."""

import numpy as np
import pytest
import torch

from persia_cli.config.schema import AdamW, DenseAdagrad, DenseAdam, DenseOptimizer, DenseSgd
from persia_cli.errors import ConfigError
from persia_cli.plan.dense import plain_schedule
from persia_cli.train.dense_state import write_files
from persia_cli.train.dense_trainer import DenseTrainer
from persia_cli.train.distributed import World
from persia_cli.train.inputs import Samples
from persia_cli.train.optimizer import LearningRate, dense_optimizer
from tests.support.runs import SGD, make_run

CASES = [
    (DenseSgd(kind="sgd", lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3, fused=True)),
    (
        DenseSgd(kind="sgd", lr=0.3, l2=0.2),
        lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.2, fused=True),
    ),
    (
        DenseAdagrad(kind="adagrad", lr=0.2, eps=1e-3),
        lambda p: torch.optim.Adagrad(p, lr=0.2, eps=1e-3, fused=True),
    ),
    (
        DenseAdam(kind="adam", lr=0.01, beta1=0.8, beta2=0.95, eps=1e-4),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-4, fused=True),
    ),
    (
        DenseAdagrad(kind="adagrad", lr=0.2, l2=0.2),
        lambda p: torch.optim.Adagrad(p, lr=0.2, weight_decay=0.2, fused=True),
    ),
    (
        DenseAdam(kind="adam", lr=0.01, l2=0.2),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.2, fused=True),
    ),
    (AdamW(kind="adamw", lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01, fused=True)),
    (
        AdamW(kind="adamw", lr=0.01, beta1=0.8, beta2=0.95, eps=1e-4, weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3, fused=True),
    ),
]


def trained(make) -> torch.Tensor:
    module = torch.nn.Linear(3, 1)
    torch.nn.init.constant_(module.weight, 0.5)
    torch.nn.init.zeros_(module.bias)
    optimizer = make(module)
    for step in range(4):
        optimizer.zero_grad()
        module(torch.full((2, 3), 0.3 * step + 0.1)).square().sum().backward()
        optimizer.step()
    return module.weight.detach()


@pytest.mark.parametrize(("config", "plain"), CASES, ids=lambda case: getattr(case, "kind", ""))
def test_it_moves_weights_as_torch_does_to_the_bit(config, plain):
    ours = trained(lambda module: dense_optimizer(config, module))
    assert torch.equal(ours, trained(lambda module: plain(module.parameters())))


def test_frozen_parameters_stay_out():
    module = torch.nn.Linear(3, 1)
    module.bias.requires_grad_(False)
    assert dense_optimizer(CASES[0][0], module).param_groups[0]["params"] == [module.weight]


def test_a_module_with_nothing_to_train_is_refused():
    with pytest.raises(ConfigError, match="no trainable parameter"):
        dense_optimizer(CASES[0][0], torch.nn.Identity())


SCHEDULED = [
    (DenseSgd, {"kind": "constant", "warmup_steps": 4}),
    (DenseAdagrad, {"kind": "step", "warmup_steps": 2, "every_steps": 3, "factor": 0.5}),
    (DenseAdam, {"kind": "cosine", "over_steps": 10, "floor": 0.1}),
    (DenseSgd, {"kind": "one_cycle", "over_steps": 9}),
]


def config_of(kind: type[DenseOptimizer], schedule: dict) -> DenseOptimizer:
    return kind.model_validate({"kind": kind.__name__.removeprefix("Dense").lower(), "lr": 0.2, "schedule": schedule})


@pytest.mark.parametrize(
    ("kind", "schedule"), SCHEDULED, ids=lambda each: each.get("kind") if isinstance(each, dict) else ""
)
def test_every_step_has_the_learning_rate_of_the_schedule(kind, schedule):
    config = config_of(kind, schedule)
    optimizer = dense_optimizer(config, torch.nn.Linear(3, 1))
    rate = LearningRate(config, optimizer)
    for step in (0, 1, 2, 5, 30, 7, 0):
        rate.set(step)
        assert [group["lr"] for group in optimizer.param_groups] == [0.2 * plain_schedule(config).at(step)]


def test_a_schedule_moves_weights_as_torchs_scheduler_does():
    config = config_of(DenseAdam, {"kind": "step", "every_steps": 2, "factor": 0.25})
    module, plain = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    plain.load_state_dict(module.state_dict())
    ours, theirs = dense_optimizer(config, module), torch.optim.Adam(plain.parameters(), lr=0.2, fused=True)
    rate, scheduler = LearningRate(config, ours), torch.optim.lr_scheduler.StepLR(theirs, step_size=2, gamma=0.25)
    for step in range(6):
        rate.set(step)
        for network, optimizer in ((module, ours), (plain, theirs)):
            optimizer.zero_grad()
            network(torch.full((2, 3), 0.3 * step + 0.1)).square().sum().backward()
            optimizer.step()
        scheduler.step()
    assert torch.equal(module.weight, plain.weight)


class Watched(DenseTrainer):
    """A rank of a model without tables that notes the learning rate of each step."""

    def step(self, number: int) -> float:
        labels = np.full((4, 1), 0.5, np.float32)
        samples = Samples(np.full((4, 2), 0.5, np.float32), labels, None, [4.0])
        self.train(number, samples, [], lambda gradients: None)
        return self._optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("kind", "schedule"), SCHEDULED, ids=lambda each: each.get("kind") if isinstance(each, dict) else ""
)
def test_a_resumed_rank_has_the_learning_rates_of_an_undisturbed_one(kind, schedule, tmp_path):
    dense = config_of(kind, schedule).model_dump()
    run = make_run([], optimizer={"embedding": SGD, "dense": dense})
    whole = Watched(run, World())
    rates = [whole.step(number) for number in range(12)]
    assert rates == [0.2 * plain_schedule(run.optimizer.dense).at(number) for number in range(12)]
    before, after = Watched(run, World()), Watched(run, World())
    for number in range(5):
        before.step(number)
    write_files(before.files(), tmp_path)
    after.load(tmp_path)
    assert [after.step(number) for number in range(5, 12)] == rates[5:]
    ours, theirs = after._module.parameters(), whole._module.parameters()
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
