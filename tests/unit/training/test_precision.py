"""Half types: the same steps as plain torch under autocast, and a loss scale that follows overflows."""

from pathlib import Path

import numpy as np
import pytest
import torch

from persia_cli.errors import UserError
from persia_cli.training.dense_state import write_files
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.distributed import World
from persia_cli.training.inputs import Samples
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.training.precision import FIRST, GROWTH_STEPS, LEAST, LossScale
from persia_cli.wire.messages import GroupRows
from tests.support.runs import make_run
from tests.unit.training import ranks
from tests.unit.training.batches import SGD, dense_step, inputs, leaves, network, plain_batch, plain_losses

SIZE = 64
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Greatest relative error of one rounding."""


def plain_gradients(
    plain: torch.nn.Module, batch: Samples, groups: list[GroupRows], dtype: torch.dtype | None
) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
    """Loss, gradients of rows and of weights by torch alone, in this autocast."""
    plain.zero_grad()
    rows = leaves(groups)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        logits = plain(plain_batch(rows, batch, groups))
    loss = plain_losses(logits, batch).mean(1).sum() / batch.weight_totals[0]
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
    ours, plain, exact = dense_step(precision="bfloat16"), network(), network()
    optimizer = dense_optimizer(SGD, plain)
    for step in range(4):
        batch, groups = inputs(step, SIZE)
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
    ours, plain = dense_step(precision="float16"), network()
    batch, groups = inputs(0, SIZE)
    result = ours.train(0, batch, groups)
    assert (result.loss_scale, result.steps_skipped) == (FIRST, 0)
    _, rows, weights = plain_gradients(plain, batch, groups, None)
    before = [weight.detach().clone() for weight in ours.module.parameters()]
    ours.update()
    moved = [(old - new.detach()).numpy() / 0.1 for old, new in zip(before, ours.module.parameters(), strict=True)]
    # Four layers forward and back, each rounding what it reads and what it gives.
    for got, expected in zip([*result.gradients, *moved], [*rows, *weights], strict=True):
        assert_near(got, expected, 16 * ROUNDING["float16"])


def test_overflow_skips_the_dense_step_and_lowers_the_scale():
    step = dense_step(precision="float16")
    step.loss_scale.scale = 2.0**26
    weights = [weight.detach().clone() for weight in step.module.parameters()]
    seen = []
    for number in range(12):
        result = step.train(number, *inputs(number, SIZE))
        step.update()
        seen.append((result.loss_scale, result.steps_skipped, all(np.isfinite(g).all() for g in result.gradients)))
        still = all(torch.equal(old, new) for old, new in zip(weights, step.module.parameters(), strict=True))
        assert still == (step.loss_scale.skipped == number + 1)
    skipped = step.loss_scale.skipped
    assert 0 < skipped < 12
    assert seen[0] == (2.0**26, 0, False)
    assert seen[-1] == (2.0 ** (26 - skipped), skipped, True)


def test_a_forward_pass_that_overflows_float16_names_the_way_out():
    module = network()
    for weight in module.parameters():
        torch.nn.init.constant_(weight, 1e4)
    with pytest.raises(UserError, match=r"overflows float16 .* use train.precision=bfloat16"):
        dense_step(module, precision="float16").train(0, *inputs(0, SIZE))


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


def rank_of(precision: str = "float16") -> DenseTrainer:
    return DenseTrainer(make_run([], train={"batch_size": 4, "precision": precision}), World())


def train_rank(rank: DenseTrainer, first: int, last: int) -> None:
    for number in range(first, last):
        dense = np.random.default_rng(number).standard_normal((4, 2)).astype(np.float32)
        rank.train(
            number,
            Samples(dense, (dense[:, :1] > 0).astype(np.float32), None, [4.0]),
            [],
            lambda _: None,
            lambda _: None,
        )


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
    first, second = ranks.on_ranks(ranks.overflow, 2, tmp_path)
    assert first["scales"].tolist() == second["scales"].tolist() == [FIRST / 2, FIRST / 2, FIRST / 4]
    assert first["skipped"].tolist() == second["skipped"].tolist() == [1, 1, 1]
    assert np.array_equal(first["weight"], second["weight"])
