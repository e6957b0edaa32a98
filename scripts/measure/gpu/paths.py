"""Checks of each path between host and GPU: copies, pooling, random numbers, reproducibility, checkpoints, memory."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from persia_cli.bench.result import Result
from persia_cli.config.schema import DenseAdagrad, Model
from persia_cli.errors import UserError
from persia_cli.kernels.batch.pool import MODES
from persia_cli.model.shape import FeatureShape
from persia_cli.store.wire_rows import encode_rows
from persia_cli.training.dense_state import dense_state, load_dense, write_files
from persia_cli.training.device import CPU, Copier, drawing_from, explained_full_memory, prepare_torch
from persia_cli.training.distributed import World
from persia_cli.training.inputs import GroupShape
from persia_cli.training.pooling import DevicePooling, GroupPooling
from persia_cli.wire.messages import GroupRows
from scripts.measure.gpu import Check, checked, compared, deviation
from scripts.measure.gpu.batches import Trainer

COPIES, POOLED, BATCH = 200, 60, 512
NEAR, GOES_ON = 1e-5, 1e-4
"""Greatest allowed deviations: of pooling from the kernels, and of training that goes on from a checkpoint."""
ADAGRAD = DenseAdagrad(kind="adagrad", lr=0.05)
"""An optimizer whose state does not amplify rounding errors."""


def path_checks(model: Model, device: torch.device) -> dict[str, Check]:
    """Return a check of each path; `model` is any network."""
    prepare_torch(torch.get_num_threads())
    World(device=device)
    checks: dict[str, Check] = {
        "pinned staging": partial(_copies, device),
        "pooling on the device": partial(_pooling, device),
        "random numbers": partial(_random, device),
        "the same bits again": partial(_again, model, device),
        "checkpoints": partial(_checkpoint, model, device),
    }
    return checks if device.type == "cpu" else checks | {"a full memory": partial(_full, device)}


def _copies(device: torch.device) -> Iterator[Result]:
    """Check copies to the device and back, while the device is busy with other work."""
    copier, rng = Copier(device), np.random.default_rng(0)
    side = 64 if device.type == "cpu" else 1024
    busy = torch.ones(side, side, device=device)
    wrong, nbytes = 0, 0
    for _ in range(COPIES):
        size = int(rng.integers(0, 200_000))
        floats, numbers = rng.standard_normal(size, np.float32), rng.integers(0, 1 << 30, size)
        busy = busy @ busy * 1e-4
        there = [copier.copy(floats), copier.copy(numbers)]
        copier.join()
        doubled = there[0] * 2.0
        # Memory that is allocated now must not be memory that copies still use.
        copier.buffer((size,), torch.float32).fill_(-1.0)
        back = copier.fetch([doubled])[0]
        wrong += not np.array_equal(back, floats * np.float32(2.0))
        wrong += not np.array_equal(there[1].cpu().numpy(), numbers)
        nbytes += floats.nbytes + numbers.nbytes
    pinned = device.type == "cpu" or copier.buffer((8,), torch.float32).is_pinned()
    note = f"{2 * COPIES} arrays, {nbytes / 2**20:,.0f} MiB, {wrong} wrong; pinned: {pinned}"
    yield checked("pinned staging", pinned and not wrong, note)


def _pooling(device: torch.device) -> Iterator[Result]:
    """Compare any mixture of poolings and hash stacks with the kernels, forward and backward."""
    rng, worst = np.random.default_rng(2), 0.0
    for _ in range(POOLED):
        shape, group, size = _group(rng)
        results = []
        for pooling in (GroupPooling(shape, Copier(CPU)), DevicePooling(shape, copier := Copier(device))):
            staged = pooling.stage(group, pooling.leaf(group))
            copier.join()
            staged.leaf.requires_grad_()
            pooled, sequences = staged.pool(size)
            values = [pooled, *(sequence for sequence, _ in sequences.values())]
            total = sum(
                (each * torch.linspace(-1, 1, each.numel()).view(each.shape).to(each.device)).sum() for each in values
            )
            if isinstance(total, torch.Tensor) and total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]
            gradient = torch.zeros_like(staged.leaf) if staged.leaf.grad is None else staged.leaf.grad
            masks = [mask.float() for _, mask in sequences.values()]
            results.append([each.detach().cpu().numpy() for each in (*values, *masks, gradient)])
        worst = max(worst, *(deviation(mine, kernels) for kernels, mine in zip(*results, strict=True)))
    yield compared("pooling on the device", {"all": worst}, {"all": NEAR}, f"{POOLED} mixtures of features")


def _group(rng: np.random.Generator) -> tuple[GroupShape, GroupRows, int]:
    size, dim, unique = int(rng.integers(0, 300)), int(rng.choice([1, 8, 16, 64])), int(rng.integers(1, 200))
    poolings = rng.choice(list(MODES), int(rng.integers(1, 6))).tolist()
    features = tuple(FeatureShape(f"f{n}", dim, each, 4 if each == "none" else None) for n, each in enumerate(poolings))
    wire = rng.choice(["float32", "bfloat16", "float16"]).item()
    rows = [encode_rows(rng.standard_normal((unique, dim), np.float32), wire)]
    if rng.random() < 0.4:
        inverse = rng.integers(0, unique, len(features) * size).astype(np.int32)
        return GroupShape(dim, features, wire), GroupRows(rows, inverse, None), size
    rounds = tuple(int(each) for each in rng.integers(1, 4, len(features)))
    counts = rng.integers(0, 7, (len(features), size)) * np.array(rounds)[:, None]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
    inverse = rng.integers(0, unique, int(offsets[-1])).astype(np.int32)
    return GroupShape(dim, features, wire, rounds), GroupRows(rows, inverse, offsets), size


def _random(device: torch.device) -> Iterator[Result]:
    drawn = []
    plain = torch.rand(64, device=device)
    for seed in (5, 5, 6):
        with drawing_from(seed, device):
            drawn.append(torch.rand(64, device=device))
    fine = torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    fine = fine and not torch.equal(plain, torch.rand(64, device=device))
    yield checked("random numbers", fine, "they follow from the seed, and others go on where they were")


def _again(model: Model, device: torch.device) -> Iterator[Result]:
    first, again = (Trainer(model, World(device=device)).trajectory(5, BATCH) for _ in range(2))
    same = np.array_equal(first.weights, again.weights) and np.array_equal(first.rows, again.rows)
    yield checked("the same bits again", same, f"two runs of 5 steps of {model.kind}")


def _checkpoint(model: Model, device: torch.device) -> Iterator[Result]:
    """Check a checkpoint written on the device: it is read there and on the CPU, and training goes on."""
    first, *followers = (Trainer(model, World(device=place), dense=ADAGRAD) for place in (device, device, CPU))
    first.trajectory(3, BATCH)
    with tempfile.TemporaryDirectory(prefix="persia-gpu-") as folder:
        state = dense_state(first.module, first.step.optimizer)
        write_files([file.copied() for file in state], Path(folder))
        for follower in followers:
            follower.trajectory(3, BATCH)
            load_dense(Path(folder), follower.module, follower.step.optimizer)
            follower.rows[...] = first.rows
    on, *others = (each.trajectory(3, BATCH).weights for each in (first, *followers))
    apart = {"there": deviation(others[0], on), "on the CPU": deviation(others[1], on)}
    yield compared("checkpoints", apart, dict.fromkeys(apart, GOES_ON), "after 3 more steps")


def _full(device: torch.device) -> Iterator[Result]:
    """Check that a request for more memory than the GPU has is refused with a sentence, and that the GPU goes on."""
    try:
        with explained_full_memory(device, 1, 16):
            torch.empty(1 << 45, dtype=torch.uint8, device=device)
    except UserError as error:
        works = float(torch.ones(8, device=device).sum()) == 8.0
        yield checked("a full memory", works, str(error))
    else:
        yield checked("a full memory", False, "32 TiB were given")
