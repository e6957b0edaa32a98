"""Our steps against the oracle's, each started from our own state, so that differences cannot accumulate."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import load_file

from persia_cli.engines.job import JobResult
from persia_cli.plan.job import JobPlan
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder
from tests.support.checkpoints import read_rows
from tests.support.jobs import losses
from tests.support.oracle import Oracle

RELATIVE, ABSOLUTE = 1e-5, 1e-6
MIN_GRADIENT = 1e-6
"""Below this a gradient is rounding error, which Adagrad and Adam divide by its own size."""
MIN_COMPARED = 0.25
"""Minimum share of coordinates with a gradient, so that the comparison is not empty."""


def assert_every_step_agrees(plan: JobPlan, result: JobResult, steps: int) -> None:
    """Reset the oracle to our state before each step of a job that was saved after each; compare all weights after it.

    Running statistics of batch normalisation are compared like weights.

    Rows that a step did not read must not have changed at all.
    """
    oracle = Oracle(plan.run, steps)
    for step, loss in enumerate(losses(result)):
        if step > 0:
            oracle.reset(checkpoint_folder(plan.run_dir / CHECKPOINTS, step), step)
        before = {name: table.bag.weight.detach().numpy().copy() for name, table in oracle.tables.items()}
        assert oracle.step(step) == pytest.approx(loss, abs=1e-6), f"loss of step {step}"
        after = checkpoint_folder(plan.run_dir / CHECKPOINTS, step + 1)
        _assert_dense_agrees(oracle, after, f"step {step}")
        _assert_rows_agree(oracle, before, after, f"step {step}")


def _assert_dense_agrees(oracle: Oracle, checkpoint: Path, step: str) -> None:
    weights = load_file(checkpoint / "dense" / "dense.safetensors")
    pairs = []
    for name, weight in oracle.module.named_parameters():
        assert weight.grad is not None
        pairs.append((weights.pop(name).numpy().ravel(), weight.detach().numpy().ravel(), weight.grad.numpy().ravel()))
    for name, buffer in oracle.module.named_buffers():
        if name in weights:
            np.testing.assert_allclose(
                weights.pop(name).numpy(), buffer.numpy(), 1e-4, ABSOLUTE, err_msg=f"{step}: {name}"
            )
    assert not weights
    ours, theirs, gradients = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    _assert_close(ours, theirs, gradients, f"{step}: dense weights")


def _assert_rows_agree(oracle: Oracle, before: dict[str, NDArray[np.float32]], checkpoint: Path, step: str) -> None:
    saved = read_rows(checkpoint)
    for name, table in oracle.tables.items():
        rows, gradients = table.gradient()
        ours = table.initial.numpy().copy()
        ours[table.rows_of(saved[name].ids)] = saved[name].embedding
        assert np.isin(table.ids[rows], saved[name].ids).all(), f"{step}: rows of {name} are not in the checkpoint"
        _assert_close(ours[rows], table.bag.weight.detach().numpy()[rows], gradients, f"{step}: rows of {name}")
        others = np.delete(np.arange(len(ours)), rows)
        np.testing.assert_array_equal(ours[others], before[name][others], err_msg=f"{step}: other rows of {name}")


def _assert_close(
    ours: NDArray[np.float32], theirs: NDArray[np.float32], gradients: NDArray[np.float32], what: str
) -> None:
    compared = np.abs(gradients) >= MIN_GRADIENT
    assert compared.mean() >= MIN_COMPARED, f"{what}: too few coordinates have a gradient"
    np.testing.assert_allclose(ours[compared], theirs[compared], RELATIVE, ABSOLUTE, err_msg=what)
