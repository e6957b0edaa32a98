"""Row optimizers against torch's own on sparse gradients."""

import numpy as np
import pytest
import torch

from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer, TableSpec, table_salt
from persia_cli.store.shard import Shard
from tests import naive

IDS, STEPS = 20, 100


def torch_optimizer(optimizer, weight):
    if optimizer.kind == "sgd":
        return torch.optim.SGD([weight], lr=optimizer.lr)
    if optimizer.kind == "adagrad":
        start = optimizer.initial_accumulator_value
        return torch.optim.Adagrad([weight], optimizer.lr, eps=optimizer.eps, initial_accumulator_value=start)
    betas = (optimizer.beta1, optimizer.beta2)
    return torch.optim.SparseAdam([weight], optimizer.lr, betas=betas, eps=optimizer.eps)


@pytest.mark.parametrize("dim", [1, 16, 17])
@pytest.mark.parametrize(
    "optimizer",
    [
        RowOptimizer("sgd", lr=0.1),
        RowOptimizer("adagrad", lr=0.1),
        RowOptimizer("adagrad", lr=0.1, initial_accumulator_value=0.1, eps=1e-6),
        RowOptimizer("adam", lr=0.01, eps=1e-8),
        RowOptimizer("adam", lr=0.01, eps=1e-6, beta1=0.5, beta2=0.9),
    ],
    ids=lambda optimizer: f"{optimizer.kind}-{optimizer.eps:g}",
)
def test_a_hundred_steps_equal_torch_within_a_millionth(optimizer, dim):
    salt = table_salt("t")
    group = GroupSpec(0, dim, optimizer, (TableSpec("t", 0, salt, 1.0),), IDS)
    shard = Shard(EmbeddingLayout((group,), (), 4, 3), 0, 1)
    ids = np.arange(IDS)
    keys, tables = naive.keys_of(salt, ids), np.zeros(IDS, np.uint16)
    bag = torch.nn.EmbeddingBag(IDS, dim, mode="sum", sparse=True)
    bag.weight.data = torch.from_numpy(shard.look_up(0, keys, tables, 0, create=True))
    theirs = torch_optimizer(optimizer, bag.weight)
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        used = np.sort(rng.choice(IDS, 8, replace=False))
        gradients = rng.standard_normal((8, dim)).astype(np.float32)
        with torch.sparse.check_sparse_tensor_invariants():
            bag.weight.grad = torch.sparse_coo_tensor(used[None], torch.from_numpy(gradients), (IDS, dim))
            theirs.step()
        shard.update(0, keys[used], tables[used], gradients, step)
    ours = shard.look_up(0, keys, tables, STEPS, create=False)
    scale = np.abs(ours).max()
    np.testing.assert_allclose(ours, bag.weight.detach().numpy(), rtol=1e-6, atol=1e-6 * scale)
