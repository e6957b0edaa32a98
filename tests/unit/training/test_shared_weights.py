"""Dense weights on embedding servers move as torch's optimizers move them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from persia_cli.config.schema import DenseAdagrad, DenseAdam, DenseOptimizer, DenseSgd
from persia_cli.errors import CheckpointError, ConfigError
from persia_cli.plan import dense
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.batch_rows import dense_rows
from persia_cli.store.shard import Shard
from persia_cli.training.optimizer import dense_optimizer, penalties
from persia_cli.training.shared_weights import SharedWeights
from persia_cli.wire.messages import GroupRows
from tests.support.runs import SGD, make_run

CONFIGS = [
    DenseSgd(kind="sgd", lr=0.1),
    DenseSgd(kind="sgd", lr=0.1, l2=0.1),
    DenseAdagrad(kind="adagrad", lr=0.05),
    DenseAdam(kind="adam", lr=0.01),
    DenseAdam(kind="adam", lr=0.01, beta1=0.5, beta2=0.9, eps=0.1),
]
SERVERS = 2


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 60), nn.ReLU(), nn.Linear(60, 37), nn.ReLU(), nn.Linear(37, 1))


@dataclass
class Servers:
    """Shards with the weights of one network."""

    config: DenseOptimizer
    rows: int
    ranks: int = 1

    def __post_init__(self) -> None:
        run = make_run(
            mode={"kind": "async"},
            embedding={"capacity": 1000},
            optimizer={"embedding": SGD, "dense": self.config.model_dump()},
            cluster={"kind": "local", "nn_workers": self.ranks},
        )
        layout = embedding_layout(run)
        assert layout.dense_group is not None
        self.group = layout.dense_group.number
        self.shards = [Shard(layout, server, SERVERS) for server in range(SERVERS)]
        self.unique = dense_rows(layout.dense_group, SERVERS, self.rows)

    def look_up(self, step: int) -> GroupRows:
        """Return the rows as an embedding worker forwards them."""
        blocks = [
            shard.look_up(self.group, self.unique.keys[part], self.unique.tables[part], step, create=True)
            for shard, part in zip(self.shards, self.parts, strict=True)
        ]
        return GroupRows(blocks, self.unique.inverse, None)

    def update(self, gradients: np.ndarray, step: int) -> None:
        """Apply gradients in the order of rows."""
        for shard, part in zip(self.shards, self.parts, strict=True):
            shard.update(self.group, self.unique.keys[part], self.unique.tables[part], gradients[part], step)

    @property
    def parts(self) -> list[slice]:
        """The rows of each server."""
        return [slice(*self.unique.bounds[server : server + 2]) for server in range(SERVERS)]


def backward(module: nn.Module, step: int) -> None:
    """Give the parameters the gradients of a generated batch."""
    rng = np.random.default_rng(step)
    inputs = torch.from_numpy(rng.standard_normal((16, 3)).astype(np.float32))
    module.zero_grad()
    ((module(inputs) - torch.from_numpy(rng.standard_normal((16, 1)).astype(np.float32))) ** 2).mean().backward()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_steps_are_those_of_torch(config: DenseOptimizer) -> None:
    ours, plain = network(), network()
    shared, optimizer = SharedWeights(ours, 1, penalties(config, ours)), dense_optimizer(config, plain)
    servers = Servers(config, shared.rows)
    assert shared.rows == 3
    for step in range(20):
        shared.set_from_rows(servers.look_up(step))
        for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
            np.testing.assert_allclose(mine.detach(), other.detach(), rtol=1e-5, atol=1e-6)
        # The gradients of the same weights, so that differences do not add up through the network.
        backward(plain, step)
        for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
            mine.grad = None if other.grad is None else other.grad.clone()
        servers.update(shared.gradients(), step)
        optimizer.step()
    moved = [(one - other).abs().max() for one, other in zip(network().parameters(), plain.parameters(), strict=True)]
    assert max(moved) > 0.02


def test_parts_of_l2_of_all_ranks_add_up_to_it() -> None:
    module, l2 = network(), 0.5
    penalty = {name: l2 for name, _ in module.named_parameters()}
    weights = torch.cat([weight.detach().flatten() for weight in module.parameters()])
    for weight in module.parameters():
        weight.grad = torch.zeros_like(weight)
    parts = [SharedWeights(network_like(module), 4, penalty).gradients() for _ in range(4)]
    assert float(sum(parts).sum()) == pytest.approx(l2 * float(weights.sum()), rel=1e-4)


def network_like(module: nn.Module) -> nn.Module:
    """Return a copy with gradients of zero."""
    copy = network()
    copy.load_state_dict(module.state_dict())
    for weight in copy.parameters():
        weight.grad = torch.zeros_like(weight)
    return copy


def test_frozen_parameters_stay_with_the_rank() -> None:
    module = network()
    next(module.parameters()).requires_grad_(False)
    kept = next(module.parameters()).detach().clone()
    shared = SharedWeights(module, 1, {})
    assert shared.rows == 3
    ids = np.arange(3, dtype=np.int32)
    shared.set_from_rows(GroupRows([np.full((3, 1024), 7, np.float32).view(np.uint8)], ids, None))
    torch.testing.assert_close(next(module.parameters()), kept)
    torch.testing.assert_close(
        list(module.parameters())[1].detach(), list(network().parameters())[1].detach() + 7, check_stride=False
    )


def test_saved_initial_weights_are_where_saved_rows_begin(tmp_path: Path) -> None:
    trained, other = SharedWeights(network(), 1, {}), nn.Sequential(*network().children())
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(1.0)
    saved = trained.initial_file().copied().write(tmp_path)
    assert (saved.folder, saved.name) == (tmp_path.name, "dense_initial.safetensors")
    loaded = SharedWeights(other, 1, {})
    loaded.load(tmp_path)
    zeros = GroupRows([np.zeros((3, 4096), np.uint8)], np.arange(3, dtype=np.int32), None)
    loaded.set_from_rows(zeros)
    for mine, first in zip(other.parameters(), network().parameters(), strict=True):
        torch.testing.assert_close(mine, first, rtol=0, atol=0)


def test_without_initial_weights_rows_begin_at_the_loaded_ones(tmp_path: Path) -> None:
    module = network()
    shared = SharedWeights(module, 1, {})
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(1.0)
    shared.load(tmp_path)
    shared.set_from_rows(GroupRows([np.zeros((3, 4096), np.uint8)], np.arange(3, dtype=np.int32), None))
    for mine, first in zip(module.parameters(), network().parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), first.detach() + 1)


def test_initial_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    SharedWeights(nn.Sequential(nn.Linear(3, 2)), 1, {}).initial_file().copied().write(tmp_path)
    with pytest.raises(CheckpointError, match="is of another model"):
        SharedWeights(network(), 1, {}).load(tmp_path)


def test_networks_that_cannot_train_so_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is float64"):
        SharedWeights(nn.Sequential(nn.Linear(2, 2, dtype=torch.float64)), 1, {})
    statistics = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    SharedWeights(statistics, 1, {})
    with pytest.raises(ConfigError, match=r"layer 1 \(BatchNorm1d\)"):
        SharedWeights(statistics, 2, 0.0)
    monkeypatch.setattr(dense, "MAX_WEIGHTS", 100)
    with pytest.raises(ConfigError, match="the model has 2,535 dense weights"):
        SharedWeights(network(), 1, {})
