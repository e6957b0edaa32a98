"""Half types: the same steps as plain torch under autocast, and a loss scale that follows overflows."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from persia_cli.config.schema import DenseSgd
from persia_cli.errors import UserError
from persia_cli.model.inputs import ModelBatch
from persia_cli.train.dense_state import write_files
from persia_cli.train.dense_trainer import DenseTrainer
from persia_cli.train.distributed import World
from persia_cli.train.inputs import Samples
from persia_cli.train.optimizer import dense_optimizer
from persia_cli.train.precision import FIRST, GROWTH_STEPS, LEAST, LossScale, all_finite
from persia_cli.train.step import DenseStep
from persia_cli.wire.messages import GroupRows
from tests.support.runs import make_run
from tests.unit.train import ranks
from tests.unit.train.batches import DENSE, GROUPS, TASKS, bagged, group_rows, network, samples, settings

SIZE = 64
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Greatest relative error of one rounding."""


def half_step(precision: str, module: torch.nn.Module | None = None, lr: float = 0.1) -> DenseStep:
    module = network() if module is None else module
    optimizer = dense_optimizer(DenseSgd(kind="sgd", lr=lr), module)
    return DenseStep(module, optimizer, GROUPS, World(), DENSE, 7, settings(precision=precision))


def inputs(step: int) -> tuple[Samples, list[GroupRows]]:
    return samples(SIZE, seed=step), [group_rows(shape, SIZE, seed=10 * step + n) for n, shape in enumerate(GROUPS)]


def plain_gradients(
    plain: torch.nn.Module, batch: Samples, groups: list[GroupRows], dtype: torch.dtype | None
) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
    """Loss, gradients of rows and of weights by torch alone, in this autocast."""
    plain.zero_grad()
    rows = [torch.from_numpy(np.concatenate(group.rows).view(np.float32)).requires_grad_() for group in groups]
    pooled = [
        bagged(rows[g], groups[g], number, feature.pooling, SIZE)
        for g, shape in enumerate(GROUPS)
        for number, feature in enumerate(shape.features)
    ]
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        logits = plain.network(torch.cat([torch.tensor(batch.dense), *pooled], dim=1))
    weights = torch.from_numpy(batch.weights)
    labels = torch.tensor(batch.labels)
    losses = functional.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none")
    loss = (losses.mean(1) * weights).sum() / weights.sum()
    loss.backward()
    return loss.item(), [leaf.grad.numpy() for leaf in rows], [p.grad.clone().numpy() for p in plain.parameters()]


def assert_near(ours: np.ndarray, theirs: np.ndarray, share: float) -> None:
    """Every element is within `share` of the greatest."""
    assert np.abs(ours - theirs).max() <= share * np.abs(theirs).max()


def test_bfloat16_steps_are_those_of_torch_under_autocast():
    """The tolerance is one rounding to bfloat16.

    Both sides round the same numbers at the same places; pooled vectors alone may differ, by an ulp of float32, which
    now and then makes one of them fall to the other side of a rounding.
    """
    ours, plain, exact = half_step("bfloat16"), network(), network()
    optimizer = dense_optimizer(DenseSgd(kind="sgd", lr=0.1), plain)
    for step in range(4):
        batch, groups = inputs(step)
        result = ours.train(step, batch, groups)
        mine = [weight.grad.clone().numpy() for weight in ours.module.parameters()]
        ours.update()
        loss, rows, weights = plain_gradients(plain, batch, groups, torch.bfloat16)
        optimizer.step()
        share = ROUNDING["bfloat16"]
        assert result.loss_sum.mean() / batch.weight_totals[0] == pytest.approx(loss, rel=share)
        for got, expected in zip([*result.gradients, *mine], [*rows, *weights], strict=True):
            assert got.dtype == np.float32
            assert_near(got, expected, share)
        if step == 0:
            _, full, _ = plain_gradients(exact, batch, groups, None)
            assert any(
                np.abs(a - b).max() > 1e-4 * np.abs(b).max() for a, b in zip(result.gradients, full, strict=True)
            )
    assert all(weight.dtype == torch.float32 for weight in ours.module.parameters())


def test_float16_gradients_come_without_the_scale():
    ours, plain = half_step("float16"), network()
    batch, groups = inputs(0)
    result = ours.train(0, batch, groups)
    assert (result.loss_scale, result.steps_skipped) == (FIRST, 0)
    _, rows, weights = plain_gradients(plain, batch, groups, None)
    before = [weight.detach().clone() for weight in ours.module.parameters()]
    ours.update()
    moved = [(old - new.detach()).numpy() / 0.1 for old, new in zip(before, ours.module.parameters(), strict=True)]
    # Four layers forward and back, each rounding what it reads and what it gives.
    for got, expected in zip([*result.gradients, *moved], [*rows, *weights], strict=True):
        assert_near(got, expected, 16 * ROUNDING["float16"])


def test_small_gradients_survive_in_float16_by_the_scale():
    batch, groups = inputs(0)
    heavy = Samples(batch.dense, batch.labels, batch.weights, [total * 2.0**22 for total in batch.weight_totals])
    gradients = half_step("float16").train(0, heavy, groups).gradients
    unscaled = half_step("float16")
    unscaled.loss_scale.scale = 1.0
    lost = unscaled.train(0, heavy, groups).gradients
    assert np.count_nonzero(gradients[0]) > 2 * np.count_nonzero(lost[0])


def test_overflow_skips_the_dense_step_and_lowers_the_scale():
    step = half_step("float16")
    step.loss_scale.scale = 2.0**26
    weights = [weight.detach().clone() for weight in step.module.parameters()]
    seen = []
    for number in range(12):
        result = step.train(number, *inputs(number))
        step.update()
        seen.append((result.loss_scale, result.steps_skipped, all(np.isfinite(g).all() for g in result.gradients)))
        still = all(torch.equal(old, new) for old, new in zip(weights, step.module.parameters(), strict=True))
        assert still == (step.loss_scale.skipped == number + 1)
    skipped = step.loss_scale.skipped
    assert 0 < skipped < 12
    assert seen[0] == (2.0**26, 0, False)
    assert seen[-1] == (2.0 ** (26 - skipped), skipped, True)


class Sensitive(torch.nn.Module):
    """The gradient of its rows overflows float16 where that of its weights does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(DENSE, TASKS)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        rows = (batch.groups[0].flatten(1) * 1e-3).half() * 30000
        return self.layer(batch.dense).float() + rows.float().mean(1, keepdim=True) * 0.5


def test_an_overflow_of_rows_only_lowers_the_scale():
    step = half_step("float16", Sensitive())
    before = step.module.layer.weight.detach().clone()
    result = step.train(0, *inputs(0))
    step.update()
    assert not np.isfinite(result.gradients[0]).all()
    assert np.isfinite(result.gradients[1]).all()
    assert (step.loss_scale.scale, step.loss_scale.skipped) == (FIRST / 2, 0)
    assert not torch.equal(before, step.module.layer.weight)


def test_a_forward_pass_that_overflows_float16_names_the_way_out():
    module = network()
    for weight in module.parameters():
        torch.nn.init.constant_(weight, 1e4)
    with pytest.raises(UserError, match=r"overflows float16 .* use train.precision=bfloat16"):
        half_step("float16", module).train(0, *inputs(0))


def test_the_scale_doubles_after_enough_steps_without_overflow():
    scale = LossScale()
    for _ in range(GROWTH_STEPS - 1):
        scale.note(overflow=False, moved=True)
    scale.note(overflow=True, moved=False)
    for _ in range(GROWTH_STEPS - 1):
        scale.note(overflow=False, moved=True)
    assert (scale.scale, scale.skipped) == (FIRST / 2, 1)
    again = LossScale()
    again.load(scale.state())
    for each in (scale, again):
        each.note(overflow=False, moved=True)
        assert (each.scale, each.skipped) == (FIRST, 1)


def test_gradients_that_overflow_at_any_scale_end_the_run():
    scale = LossScale()
    scale.scale = LEAST
    with pytest.raises(UserError, match=r"overflow float16 even .* train.precision=bfloat16"):
        scale.note(overflow=True, moved=False)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_value_among_many_is_found(bad):
    tensors = [torch.ones(5), torch.zeros(0), torch.full((3, 2), 1e38)]
    assert all_finite(tensors)
    assert all_finite([])
    tensors[2][1, 1] = bad
    assert not all_finite(tensors)


def rank_of(precision: str = "float16") -> DenseTrainer:
    return DenseTrainer(make_run([], train={"batch_size": 4, "precision": precision}), World())


def train_rank(rank: DenseTrainer, first: int, last: int) -> None:
    for number in range(first, last):
        dense = np.random.default_rng(number).standard_normal((4, 2)).astype(np.float32)
        rank.train(number, Samples(dense, (dense[:, :1] > 0).astype(np.float32), None, [4.0]), [], lambda _: None)


def test_a_resumed_rank_goes_on_with_its_scale_to_the_bit(tmp_path):
    whole, before, after = rank_of(), rank_of(), rank_of()
    for rank in (whole, before):
        rank._step.loss_scale.scale = 2.0**21
    train_rank(whole, 0, 12)
    train_rank(before, 0, 5)
    assert 0 < before._step.loss_scale.skipped < 5
    write_files(before.files(), tmp_path / "dense")
    after.load(tmp_path / "dense")
    train_rank(after, 5, 12)
    assert after._step.loss_scale.state() == whole._step.loss_scale.state()
    pairs = zip(after._module.parameters(), whole._module.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)


def test_precision_may_change_between_save_and_load(tmp_path):
    write_files(rank_of("float32").files(), tmp_path / "full")
    write_files(rank_of("float16").files(), tmp_path / "half")
    fresh = rank_of("float16")
    fresh.load(tmp_path / "full")
    assert fresh._step.loss_scale.state() == LossScale().state()
    rank_of("bfloat16").load(tmp_path / "half")


@pytest.mark.processes
def test_an_overflow_on_one_rank_is_one_for_all(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    started = [
        context.Process(target=ranks.run_to_the_end, args=(ranks.overflow, rank, 2, str(tmp_path))) for rank in range(2)
    ]
    for process in started:
        process.start()
    try:
        for process in started:
            process.join(120)
        assert [process.exitcode for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
            process.join()
    first, second = (np.load(tmp_path / f"rank-{rank}.npz") for rank in range(2))
    assert first["scales"].tolist() == second["scales"].tolist() == [FIRST / 2, FIRST / 2, FIRST / 4]
    assert first["skipped"].tolist() == second["skipped"].tolist() == [1, 1, 1]
    assert np.array_equal(first["weight"], second["weight"])
