"""Row optimizers against torch's on sparse gradients, FBGEMM's row-wise Adagrad and the FTRL of the paper."""

import importlib
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from persia_cli.store.layout import RowOptimizer, Schedule
from persia_cli.store.shard import Shard
from tests import naive
from tests.support.shards import SEED, TABLES, layout_of

IDS, STEPS, BATCH = 20, 100, 12
TABLE = TABLES[1]
DIMS = [1, 16, 40]
COSINE = Schedule("cosine", warmup_steps=10, over_steps=60, floor=0.1)
STEP = Schedule("step", warmup_steps=5, every_steps=20, factor=0.5)
ROWWISE = RowOptimizer("rowwise_adagrad", lr=0.1, eps=1e-8)
FTRL = RowOptimizer("ftrl", lr=0.1, beta=1.0, l1=0.05, l2=0.01)


def initial(dim):
    return naive.initial_rows(SEED, TABLE.salt, range(IDS), dim, TABLE.init_bound)


def batches(dim, scale=1.0):
    """(step, distinct ids, their gradients) of batches in which ids repeat: gradients of one id are added."""
    rng = np.random.default_rng(dim)
    for step in range(STEPS):
        ids = rng.choice(IDS, BATCH, replace=step % 2 == 0)
        gradients = (scale * rng.standard_normal((BATCH, dim))).astype(np.float32)
        used = np.unique(ids)
        yield step, used, np.stack([gradients[ids == id_].sum(0, dtype=np.float32) for id_ in used])


def ours(optimizer, dim, scale=1.0, table=TABLE):
    """float32[IDS, dim] after all batches, on a shard."""
    shard = Shard(layout_of(dim, 100, 4, optimizer, tables=[table]), 0, 1)
    keys, tables = naive.keys_of(table.salt, range(IDS)), np.full(IDS, table.number, np.uint16)
    shard.look_up(0, keys, tables, 0, create=True)
    if table is TABLE:
        np.testing.assert_array_equal(shard.values(0, keys, tables), initial(dim))
    for step, used, gradients in batches(dim, scale):
        shard.update(0, keys[used], tables[used], gradients, step)
    return shard.values(0, keys, tables)


def close(one, other):
    """Equal within a millionth of the value, or of the greatest where values cancel out."""
    other = np.asarray(other, np.float64)
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(other).max())


def torch_optimizer(optimizer, weights):
    if optimizer.kind == "sgd":
        return torch.optim.SGD(weights, lr=optimizer.lr)
    if optimizer.kind == "adagrad":
        start = optimizer.initial_accumulator_value
        return torch.optim.Adagrad(weights, optimizer.lr, eps=optimizer.eps, initial_accumulator_value=start)
    betas = (optimizer.beta1, optimizer.beta2)
    return torch.optim.SparseAdam(weights, optimizer.lr, betas=betas, eps=optimizer.eps)


def torch_table(optimizer, dim):
    """float32[IDS, dim]: a whole table under torch with sparse gradients."""
    weight = torch.nn.Parameter(torch.from_numpy(initial(dim)))
    theirs = torch_optimizer(optimizer, [weight])
    with torch.sparse.check_sparse_tensor_invariants():
        for step, used, gradients in batches(dim):
            weight.grad = torch.sparse_coo_tensor(used[None], torch.from_numpy(gradients), (IDS, dim))
            theirs.param_groups[0]["lr"] = optimizer.lr * optimizer.schedule.at(step)
            theirs.step()
    return weight.detach()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(
    "optimizer",
    [
        RowOptimizer("sgd", lr=0.1),
        RowOptimizer("sgd", lr=0.1, schedule=STEP),
        RowOptimizer("adagrad", lr=0.1),
        RowOptimizer("adagrad", lr=0.1, initial_accumulator_value=0.1, eps=1e-6, schedule=COSINE),
        RowOptimizer("adam", lr=0.01, eps=1e-8),
        RowOptimizer("adam", lr=0.01, eps=1e-6, beta1=0.5, beta2=0.9, schedule=COSINE),
    ],
    ids=lambda optimizer: f"{optimizer.kind}-{optimizer.schedule.kind}",
)
def test_a_hundred_steps_equal_torch_on_sparse_gradients(optimizer, dim):
    close(ours(optimizer, dim), torch_table(optimizer, dim))


def rows_by_torch(optimizer, dim):
    """float32[IDS, dim]: every row trained alone by torch's dense optimizer, with penalties, clipping and clamping.

    torch's optimizers count the gradients of a parameter, servers the steps of training, so Adam's step is set.
    """
    rows = [torch.nn.Parameter(row.clone()) for row in torch.from_numpy(initial(dim))]
    settings = {"lr": optimizer.lr, "weight_decay": optimizer.l2 or optimizer.weight_decay}
    match optimizer.kind:
        case "sgd":
            theirs = [torch.optim.SGD([row], **settings) for row in rows]
        case "adagrad":
            theirs = [torch.optim.Adagrad([row], **settings, eps=optimizer.eps) for row in rows]
        case "adam":
            kind = torch.optim.AdamW if optimizer.weight_decay else torch.optim.Adam
            settings |= {"betas": (optimizer.beta1, optimizer.beta2), "eps": optimizer.eps}
            theirs = [kind([row], **settings) for row in rows]
            for row, one in zip(rows, theirs, strict=True):
                one.state[row] = {"exp_avg": torch.zeros(dim), "exp_avg_sq": torch.zeros(dim)}
        case other:
            raise NotImplementedError(other)
    for step, used, gradients in batches(dim, 10.0):
        for id_, gradient in zip(used, gradients, strict=True):
            rows[id_].grad = torch.from_numpy(gradient)
            if optimizer.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_([rows[id_]], optimizer.clip_norm)
            if optimizer.kind == "adam":
                theirs[id_].state[rows[id_]]["step"] = torch.tensor(float(step))
            theirs[id_].step()
            if optimizer.weight_bound is not None:
                rows[id_].data.clamp_(-optimizer.weight_bound, optimizer.weight_bound)
    return torch.stack(rows).detach()


@pytest.mark.parametrize("dim", [1, 40])
@pytest.mark.parametrize(
    ("kind", "lr", "change"),
    [
        ("sgd", 0.1, {"l2": 0.02}),
        ("sgd", 0.1, {"weight_decay": 0.02}),  # for SGD the two are one
        ("sgd", 0.1, {"clip_norm": 8.0}),
        ("sgd", 0.1, {"weight_bound": 0.25}),
        ("adagrad", 0.1, {"l2": 0.5}),
        ("adagrad", 0.1, {"clip_norm": 8.0}),
        ("adagrad", 0.1, {"weight_bound": 0.25}),
        ("adam", 0.01, {"l2": 0.5}),
        ("adam", 0.01, {"weight_decay": 0.5}),
    ],
)
def test_penalties_clipping_and_bounds_equal_torch_row_by_row(kind, lr, change, dim):
    optimizer = RowOptimizer(kind, lr=lr, eps=1e-12)
    expected = rows_by_torch(replace(optimizer, **change), dim)
    found = ours(replace(optimizer, **change), dim, 10.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert np.abs(found - ours(optimizer, dim, 10.0)).max() > 1e-3


@pytest.mark.parametrize("dim", DIMS)
def test_weight_decay_of_adagrad_is_apart_from_its_sums(dim):
    """torch has none, so by the formula: w (1 - lr d) - lr g / (sqrt(s) + eps), at the rate of the schedule."""
    optimizer = RowOptimizer("adagrad", lr=0.1, weight_decay=0.3, schedule=COSINE)
    weight, sums = torch.from_numpy(initial(dim)), torch.zeros(IDS, dim)
    for step, used, gradients in batches(dim):
        g, lr = torch.from_numpy(gradients), optimizer.lr * COSINE.at(step)
        sums[used] += g * g
        weight[used] = weight[used] * (1 - lr * 0.3) - lr * g / (sums[used].sqrt() + optimizer.eps)
    close(ours(optimizer, dim), weight)


@pytest.mark.parametrize(("l2", "decay"), [(0.0, 0.0), (0.05, 0.0), (0.0, 0.2)])
@pytest.mark.parametrize("dim", DIMS)
def test_rowwise_adagrad_equals_its_formula(dim, l2, decay):
    optimizer = replace(ROWWISE, l2=l2, weight_decay=decay, initial_accumulator_value=0.01)
    weight, sums = torch.from_numpy(initial(dim)), torch.full((IDS, 1), 0.01)
    for _, used, gradients in batches(dim):
        g = torch.from_numpy(gradients) + l2 * weight[used]
        sums[used] += (g * g).mean(1, keepdim=True)
        step = optimizer.lr / (sums[used].sqrt() + optimizer.eps) * g
        weight[used] = weight[used] * (1 - optimizer.lr * decay) - step
    close(ours(optimizer, dim), weight)


@pytest.mark.parametrize("dim", [4, 16])
def test_rowwise_adagrad_equals_fbgemm(dim):
    """Without weight decay, which FBGEMM ignores on a CPU."""
    pytest.importorskip("fbgemm_gpu", exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        configs = importlib.import_module("fbgemm_gpu.split_embedding_configs")
        common = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")
        bags = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(IDS, dim, common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)],
            optimizer=configs.EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=ROWWISE.lr,
            eps=ROWWISE.eps,
        )
        bags.split_embedding_weights()[0].copy_(torch.from_numpy(initial(dim)))
        for _, used, gradients in batches(dim):
            pooled = bags(torch.from_numpy(used), torch.arange(used.size + 1))
            pooled.backward(torch.from_numpy(gradients))
    close(ours(ROWWISE, dim), bags.split_embedding_weights()[0])


@pytest.mark.parametrize("schedule", [Schedule(), COSINE], ids=lambda schedule: schedule.kind)
@pytest.mark.parametrize(("l2", "decay"), [(0.0, 0.0), (0.05, 0.0), (0.0, 0.2)])
@pytest.mark.parametrize("dim", DIMS)
def test_rowwise_adam_equals_its_formula(dim, l2, decay, schedule):
    """As in algorithm 1 of Kingma and Ba: the mean divided by 1 - beta2^t; eps is added to its uncorrected root."""
    optimizer = RowOptimizer(
        "rowwise_adam", lr=0.01, eps=1e-3, beta2=0.95, l2=l2, weight_decay=decay, schedule=schedule
    )
    weight, squares = torch.from_numpy(initial(dim)), torch.zeros(IDS, 1)
    for step, used, gradients in batches(dim):
        g, lr = torch.from_numpy(gradients) + l2 * weight[used], optimizer.lr * schedule.at(step)
        squares[used] = 0.95 * squares[used] + 0.05 * (g * g).mean(1, keepdim=True)
        correction = 1 - 0.95 ** (step + 1)
        divisor = (squares[used] / correction).sqrt() + optimizer.eps / correction**0.5
        weight[used] = weight[used] * (1 - lr * decay) - lr * g / divisor
    close(ours(optimizer, dim), weight)


def ftrl_of_the_paper(weights, batches, alpha, beta, l1, l2, n=0.0):
    """float64[IDS, dim]: algorithm 1 of McMahan et al. 2013, weight by weight, from z = 0.

    `weights` are what the first predictions are made with. The paper begins with those that z = 0 stands for, zeros.
    """
    weights = weights.astype(np.float64)
    z, n = np.zeros_like(weights), np.full_like(weights, n)
    for _, used, gradients in batches:
        for id_, gradient in zip(used, gradients.astype(np.float64), strict=True):
            for i, g in enumerate(gradient):
                sigma = (np.sqrt(n[id_, i] + g**2) - np.sqrt(n[id_, i])) / alpha
                z[id_, i] += g - sigma * weights[id_, i]
                n[id_, i] += g**2
                weights[id_, i] = 0.0
                if abs(z[id_, i]) > l1:
                    strength = (beta + np.sqrt(n[id_, i])) / alpha + l2
                    weights[id_, i] = -(z[id_, i] - np.sign(z[id_, i]) * l1) / strength
    return weights


@pytest.mark.parametrize("dim", [1, 16])
@pytest.mark.parametrize("bound", [0.0, 1.0])
@pytest.mark.parametrize(
    "optimizer", [FTRL, replace(FTRL, lr=0.5, l1=0.0), replace(FTRL, l1=20.0, initial_accumulator_value=0.5, beta=0.3)]
)
def test_ftrl_equals_the_paper_in_float64(optimizer, bound, dim):
    """From rows of zeros, as the paper has it, and from random ones, which count until their first gradient."""
    table = replace(TABLE, init_bound=bound)
    expected = ftrl_of_the_paper(
        naive.initial_rows(SEED, TABLE.salt, range(IDS), dim, bound), batches(dim),
        optimizer.lr, optimizer.beta, optimizer.l1, optimizer.l2, optimizer.initial_accumulator_value,
    )  # fmt: skip
    found = ours(optimizer, dim, table=table)
    close(found, expected)
    np.testing.assert_array_equal(found == 0, expected == 0)
    assert (found == 0).any() or optimizer.l1 < 1 or dim == 1


@pytest.mark.parametrize("schedule", [Schedule(), COSINE], ids=lambda schedule: schedule.kind)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ftrl_makes_every_weight_0_that_its_l1_penalty_outweighs(schedule, dtype):
    """Gradients are noise, whose sums stay below l1: weights are 0 from the first one on, and stay so."""
    optimizer = RowOptimizer("ftrl", lr=0.05, beta=1.0, l1=1.0, schedule=schedule)
    table = replace(TABLE, init_bound=0.01)
    shard = Shard(layout_of(16, 100, 4, optimizer, tables=[table], dtype=dtype), 0, 1)
    keys, tables = naive.keys_of(table.salt, range(IDS)), np.full(IDS, table.number, np.uint16)
    shard.look_up(0, keys, tables, 0, create=True)
    rng = np.random.default_rng(0)
    for step in range(200):
        shard.update(0, keys, tables, rng.normal(0, 0.005, (IDS, 16)).astype(np.float32), step)
        assert not shard.values(0, keys, tables).any()
