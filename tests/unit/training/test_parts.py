"""Steps that are computed in parts: against plain torch that accumulates gradients, and on several ranks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from persia_cli.config.schema import Ffnn
from persia_cli.errors import PersiaError
from persia_cli.model.build import build_model
from persia_cli.training.distributed import World
from persia_cli.training.inputs import Samples, StepParts, cut_ids
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.wire.messages import GroupRows
from tests.unit.training import ranks
from tests.unit.training.batches import (
    FEATURES,
    GROUPS,
    OPTIMIZERS,
    SHAPE,
    TASKS,
    dense_step,
    group_rows,
    inputs,
    leaves,
    network,
    plain_batch,
    plain_losses,
    samples,
    share,
)

SIZE, PART = 18, 5
FOUR = StepParts(4, PART)
"""The last part has three samples."""


@pytest.mark.parametrize(
    ("config", "norm"),
    [*((config, "none") for config in OPTIMIZERS), (OPTIMIZERS[0], "batch")],
    ids=["sgd", "adagrad", "adam", "sgd-batch-norm"],
)
def test_steps_are_those_of_plain_torch_that_accumulates(config, norm):
    """The dense step is one for all parts, clipped once; with batch normalisation each part has its own statistics."""
    model = Ffnn(kind="ffnn", dim=4, hidden=(8, 5), norm=norm)
    ours, plain = (build_model(model, SHAPE, 0) for _ in range(2))
    step, optimizer = dense_step(ours, config, parts=FOUR, clip_norm=0.02), dense_optimizer(config, plain)
    plain.train()
    for number in range(4):
        batch, groups = inputs(number, SIZE)
        result = step.train(number, batch, groups)
        step.update()

        optimizer.zero_grad()
        rows = leaves(groups)
        logits = []
        for start in range(0, SIZE, PART):
            part, own = share(batch, groups, start, min(start + PART, SIZE))
            logits.append(plain(plain_batch(rows, part, own)))
            (plain_losses(logits[-1], part).mean(1).sum() / batch.weight_totals[0]).backward()
        norm_before = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.02)
        optimizer.step()

        assert norm_before > 0.02
        assert result.logits == pytest.approx(torch.cat(logits).detach().numpy(), abs=2e-5)
        for gradient, leaf in zip(result.gradients, rows, strict=True):
            assert gradient == pytest.approx(leaf.grad.numpy(), abs=2e-6)
    for (name, mine), other in zip(ours.state_dict().items(), plain.state_dict().values(), strict=True):
        assert mine.numpy() == pytest.approx(other.numpy(), abs=5e-5), name


@pytest.mark.parametrize("size", [0, 1, 4, 5, 6, 18, 20])
def test_the_network_never_sees_more_samples_than_a_part_has(size):
    seen: list[int] = []
    module = network()
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].size))
    step = dense_step(module, parts=FOUR)
    batch, groups = inputs(0, size)
    sent: list[int] = []
    result = step.train(0, batch, groups, send=lambda gradients: sent.append(len(seen)))
    trained = [PART] * (size // PART) + [size % PART] * (size % PART > 0) or [0]
    assert seen == trained
    assert sent == [len(trained)], "rows leave once, after the last part"
    assert result.logits.shape == (size, TASKS)
    step.evaluate(0, batch, groups)
    assert seen == trained * 2


def test_random_numbers_depend_on_seed_step_and_part_alone():
    model = Ffnn(kind="ffnn", dim=4, hidden=(8, 5), dropout=0.5)
    batch, groups = inputs(0, SIZE)
    steps = [dense_step(build_model(model, SHAPE, 0), parts=FOUR) for _ in range(2)]
    steps[0].train(0, batch, groups)
    assert np.array_equal(steps[0].train(1, batch, groups).logits, steps[1].train(1, batch, groups).logits)
    same = Samples(np.ones_like(batch.dense), batch.labels, None, [float(SIZE)] * TASKS)
    none = [GroupRows(group.rows, group.inverse[:0], np.zeros_like(group.offsets)) for group in groups]
    logits = steps[0].train(0, same, none).logits
    assert not np.array_equal(logits[:PART], logits[PART : 2 * PART])


@pytest.mark.parametrize("sample", [0, SIZE - 1])
def test_a_loss_that_is_not_finite_in_any_part_sends_nothing(sample):
    batch, groups = inputs(0, SIZE)
    dense = batch.dense.copy()
    dense[sample, 1] = np.nan
    spoilt = Samples(dense, batch.labels, batch.weights, batch.weight_totals)
    sent = []
    with pytest.raises(PersiaError, match=r"the loss of step 0 .* dense feature number 1 "):
        dense_step(parts=FOUR).train(0, spoilt, groups, send=sent.append)
    assert not sent


@pytest.mark.parametrize("ids", ["lists", "one each"])
def test_ids_of_parts_are_those_of_their_samples(ids):
    shape, cuts = GROUPS[0], FOUR.cuts(SIZE)
    group = group_rows(shape, SIZE, seed=4)
    if ids == "one each":
        single = np.random.default_rng(1).integers(0, 20, SIZE * len(shape.features)).astype(np.int32)
        group = GroupRows(group.rows, single, None)
    whole = group if group.offsets is not None else group._replace(offsets=np.arange(group.inverse.size + 1))
    for cut, part in zip(cuts, cut_ids(group, len(shape.features), SIZE, cuts), strict=True):
        (expected,) = share(samples(SIZE, seed=0), [whole], cut.start, cut.stop)[1]
        assert np.array_equal(part.inverse, expected.inverse)
        assert part.rows is group.rows
        assert (part.offsets is None) == (group.offsets is None)
        assert part.offsets is None or np.array_equal(part.offsets, expected.offsets)


@pytest.mark.parametrize("what", ["fewer", "beyond", "backwards", "single"])
def test_ids_that_are_not_of_the_samples_are_refused(what):
    group = group_rows(GROUPS[0], SIZE, seed=4)
    offsets, inverse = group.offsets.copy(), group.inverse
    if what == "fewer":
        offsets = offsets[:-1]
    elif what == "beyond":
        offsets[-1] += 1
    elif what == "backwards":
        offsets[3] = offsets[-1]
    else:
        offsets, inverse = None, inverse[:7]
    with pytest.raises(ValueError, match="expected"):
        cut_ids(GroupRows(group.rows, inverse, offsets), len(FEATURES[:3]), SIZE, FOUR.cuts(SIZE))


def test_parts_have_every_sample_once():
    for size in range(12):
        for count in range(1, 5):
            for most in range(1, 5):
                cuts = StepParts(count, most).cuts(size)
                assert len(cuts) == count
                assert [each for cut in cuts for each in range(size)[cut]] == list(range(size))
                assert all(cut.stop - cut.start <= most for cut in cuts) or count * most < size


@pytest.mark.processes
def test_two_ranks_compute_the_parts_of_one_and_add_up_once(tmp_path: Path):
    """The last step has samples for rank 0 alone; with batch normalisation ranks share the statistics of each part."""
    found = ranks.on_ranks(ranks.accumulate, 2, tmp_path)
    # One bucket of gradients in each rehearsal, of which there are two, and in each step.
    assert [each["sums"].tolist() for each in found] == [[0] * (1 + ranks.STEPS + 1 + ranks.STEPS - 1)] * 2
    one = ranks.train(World())
    # Part 0 has the first three samples of both ranks, part 1 the others.
    order = [0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11]
    normal = ranks.train(World(), last=ranks.STEPS - 1, module=ranks.normalised(), parts=StepParts(2, 6), order=order)
    assert any("running_var" in name for name in normal)
    ranks.assert_one_model(found, one | {f"normal/{name}": value for name, value in normal.items()})
