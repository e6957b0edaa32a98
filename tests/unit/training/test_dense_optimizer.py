"""Dense optimizers are torch's, with every setting of the config, and each step has its learning rate."""

import numpy as np
import pytest
import torch

from persia_cli.config.schema import AdamW, DenseAdagrad, DenseAdam, DenseOptimizer, DenseSgd
from persia_cli.plan.dense import plain_schedule
from persia_cli.training.dense_state import write_files
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.distributed import World
from persia_cli.training.inputs import Samples
from persia_cli.training.optimizer import dense_optimizer
from tests.support.runs import SGD, make_run

BETAS = {"beta1": 0.8, "beta2": 0.95}
CASES = [
    (DenseSgd(kind="sgd", lr=0.3, l2=0.2), torch.optim.SGD, {"weight_decay": 0.2}),
    (DenseAdagrad(kind="adagrad", lr=0.3, eps=1e-3), torch.optim.Adagrad, {"eps": 1e-3}),
    (DenseAdagrad(kind="adagrad", lr=0.3, l2=0.2), torch.optim.Adagrad, {"weight_decay": 0.2}),
    (DenseAdam(kind="adam", lr=0.3, **BETAS, eps=1e-4), torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-4}),
    (DenseAdam(kind="adam", lr=0.3, l2=0.2), torch.optim.Adam, {"weight_decay": 0.2}),
    (AdamW(kind="adamw", lr=0.3), torch.optim.AdamW, {}),
    (
        AdamW(kind="adamw", lr=0.3, **BETAS, weight_decay=0.1),
        torch.optim.AdamW,
        {"betas": (0.8, 0.95), "weight_decay": 0.1},
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


@pytest.mark.parametrize(("config", "plain", "words"), CASES, ids=lambda case: getattr(case, "kind", ""))
def test_it_moves_weights_as_torch_does_to_the_bit(config, plain, words):
    ours = trained(lambda module: dense_optimizer(config, module))
    assert torch.equal(ours, trained(lambda module: plain(module.parameters(), lr=0.3, fused=True, **words)))


SCHEDULED = [
    (DenseSgd, {"kind": "constant", "warmup_steps": 4}),
    (DenseAdagrad, {"kind": "step", "warmup_steps": 2, "every_steps": 3, "factor": 0.5}),
    (DenseAdam, {"kind": "cosine", "over_steps": 10, "floor": 0.1}),
    (DenseSgd, {"kind": "one_cycle", "over_steps": 9}),
]


def config_of(kind: type[DenseOptimizer], schedule: dict) -> DenseOptimizer:
    return kind.model_validate({"kind": kind.__name__.removeprefix("Dense").lower(), "lr": 0.2, "schedule": schedule})


class Watched(DenseTrainer):
    """A rank of a model without tables that notes the learning rate of each step."""

    def step(self, number: int) -> float:
        labels = np.full((4, 1), 0.5, np.float32)
        samples = Samples(np.full((4, 2), 0.5, np.float32), labels, None, [4.0])
        self.train(number, samples, [], lambda gradients: None, lambda scored: None)
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
    ours, theirs = after.network.parameters(), whole.network.parameters()
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
