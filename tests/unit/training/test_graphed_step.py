"""A graph's step against the step without one: every network, lists and sequences of any length, every optimizer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from persia_cli.config.schema import BCE, AdamW, DenseAdagrad, DenseAdam, DenseSgd, Ffnn, Mse, TwoTower
from persia_cli.errors import UserError
from persia_cli.model.build import build_model
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.model.uncertainty import learn_uncertainty
from persia_cli.store.wire_rows import decode_rows, encode_rows
from persia_cli.training.distributed import World
from persia_cli.training.graphs.blocks import step_bytes
from persia_cli.training.graphs.step import SLOTS, GraphedStep
from persia_cli.training.inputs import GroupShape, Samples
from persia_cli.training.loss import Objective
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.training.step import DenseStep
from persia_cli.wire.messages import GroupRows
from scripts.measure.gpu.batches import HISTORY, random_ids, random_samples, shape_for
from scripts.measure.gpu.host_queue import HostQueue, HostSlot
from tests.unit.model.kinds import AUXILIARY, KINDS, name
from tests.unit.training.batches import DENSE, GROUPS, ROWS, group_rows, network, samples, settings

SIZE, RATE = 24, 0.05
OPTIMIZERS = [
    DenseSgd(kind="sgd", lr=RATE, l2=0.01),
    DenseAdagrad(kind="adagrad", lr=RATE),
    DenseAdam(kind="adam", lr=RATE, l2=0.01),
    AdamW(kind="adamw", lr=RATE, weight_decay=0.1),
]


class Pair:
    """The same network twice: one trains by graphs, the other without."""

    def __init__(
        self, modules: Sequence[torch.nn.Module], groups: Sequence[GroupShape], dense: int, optimizer, **changes
    ):
        self.steps = [
            DenseStep(
                each, dense_optimizer(optimizer, each), groups, World(), dense, 5, settings(by_kernels=False, **changes)
            )
            for each in modules
        ]
        self.groups, self.queue = groups, HostQueue()
        self.graphed = GraphedStep(self.steps[0], groups, self.queue, SIZE)
        self.number = 0

    def train(self, batch: Samples, rows: list[GroupRows]) -> None:
        """Train one step on both; the first prepares the graph. Assert that scores, gradients and weights agree."""
        ours, plain = self.steps
        expected = plain.train(self.number, batch, rows)
        plain.update()
        if self.number == 0:
            before = self.graphed.state()
            ours.train(0, batch, rows)
            ours.update()
            assert self.graphed.difference_from_eager(0, batch, rows, before, expected) == ""
        else:
            pending = self.graphed.submit(self.number, batch, rows, RATE, lambda: None)
            scored, gradients = self.graphed.finish(pending)
            np.testing.assert_allclose(scored.logits, expected.logits, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(scored.loss_sum, expected.loss_sum, rtol=1e-5)
            for shape, encoded, gradient in zip(self.groups, gradients, expected.gradients, strict=True):
                again = decode_rows(encode_rows(np.ascontiguousarray(gradient), shape.wire), shape.dim, shape.wire)
                tolerance = 1e-2 if shape.wire != "float32" else 1e-5
                atol = tolerance * float(np.abs(gradient).max(initial=0.0)) + 1e-12
                np.testing.assert_allclose(decode_rows(encoded, shape.dim, shape.wire), again, rtol=0, atol=atol)
        for own, other in zip(ours.module.state_dict().values(), plain.module.state_dict().values(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
        self.number += 1


NETWORKS = [
    model.model_copy(update={"attend": {"f0": (HISTORY,)}}) if hasattr(model, "attend") else model
    for model in (*KINDS, *AUXILIARY)
    if not isinstance(model, TwoTower)
]


@pytest.mark.parametrize("model", NETWORKS, ids=name)
def test_every_network_trains_as_without_a_graph(model) -> None:
    shape = shape_for(model)
    groups = [GroupShape(model.dim, shape.features)]
    modules = [build_model(model, shape, 0) for _ in range(2)]
    # Adagrad would divide noise by noise in its first steps.
    pair = Pair(modules, groups, shape.dense, DenseSgd(kind="sgd", lr=RATE), objective=Objective([BCE] * shape.tasks))
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((400, model.dim), np.float32) * np.float32(0.1)
    for _ in range(6):
        ids, group = random_ids(shape, SIZE, rng)
        blocks = [encode_rows(part, "float32") for part in np.array_split(rows[ids], 3)]
        pair.train(random_samples(shape, SIZE, rng), [GroupRows(blocks, group.inverse, group.offsets)])


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_every_optimizer_moves_weights_as_without_a_graph(optimizer, wire) -> None:
    groups = [replace(GROUPS[0], wire=wire), replace(GROUPS[1], is_frozen=True)]
    pair = Pair([network(), network()], groups, DENSE, optimizer, clip_norm=0.5)
    for step in range(8):
        batch = samples(SIZE, seed=step, weighted=step % 2 == 1)
        if step > 4:
            batch.labels.flags.writeable = True
            batch.labels[::3, 1] = np.nan
        # More rows and longer lists from step to step: the graph grows.
        rows = [group_rows(shape, SIZE, seed=10 * step + n, unique=20 + 30 * step) for n, shape in enumerate(groups)]
        pair.train(batch, rows)
    assert 1 < pair.queue.captured < 8


def test_the_memory_of_blocks_is_estimated_for_different_ids() -> None:
    sizes: list[int] = []

    class Measured(HostQueue):
        def slot(self, given: torch.Tensor, result: torch.Tensor) -> HostSlot:
            sizes.append(given.numel() + result.numel())
            return super().slot(given, result)

    model = Ffnn(kind="ffnn", dim=4, hidden=(8,))
    features = tuple(FeatureShape(name, 4, "sum") for name in "abc")
    for groups in ([GroupShape(4, features)], [GroupShape(4, features, "float16", is_frozen=True)]):
        module = build_model(model, InputShape(DENSE, features, 1), 0)
        step = DenseStep(
            module,
            dense_optimizer(OPTIMIZERS[0], module),
            groups,
            World(),
            DENSE,
            5,
            settings(by_kernels=False, objective=Objective([BCE])),
        )
        graphed = GraphedStep(step, groups, Measured(), SIZE)
        ids = np.arange(3 * SIZE, dtype=np.int32)
        rows = [GroupRows([encode_rows(np.zeros((ids.size, 4), np.float32), groups[0].wire)], ids, None)]
        batch = Samples(np.zeros((SIZE, DENSE), np.float32), np.ones((SIZE, 1), np.float32), None, [float(SIZE)])
        graphed.finish(graphed.submit(0, batch, rows, RATE, lambda: None))
        assert sizes == [step_bytes(groups, SIZE, DENSE, 1)] * SLOTS
        sizes.clear()


def test_a_batch_without_lists_among_others_needs_no_graph_of_its_own() -> None:
    pair = Pair([network(), network()], GROUPS, DENSE, OPTIMIZERS[1])
    rng = np.random.default_rng(4)
    for step in range(4):
        rows = [group_rows(shape, SIZE, seed=7) for shape in GROUPS]
        if step % 2:
            ids = [rng.integers(0, ROWS, len(shape.features) * SIZE, np.int32) for shape in GROUPS]
            rows = [GroupRows(each.rows, own, None) for each, own in zip(rows, ids, strict=True)]
        pair.train(samples(SIZE, seed=step), rows)
    assert pair.queue.captured == 1


def test_the_step_without_a_graph_continues_where_the_graph_stopped() -> None:
    pair = Pair([network(), network()], GROUPS, DENSE, OPTIMIZERS[2])
    for step in range(4):
        pair.train(samples(SIZE, seed=step), [group_rows(shape, SIZE, seed=step) for shape in GROUPS])
    short = samples(5, seed=9), [group_rows(shape, 5, seed=9) for shape in GROUPS]
    for each in pair.steps:
        each.train(4, *short)
        each.update()
    ours, plain = pair.steps
    for own, other in zip(ours.module.parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    assert not pair.graphed.fits(short[0])


def test_random_numbers_are_those_of_the_step() -> None:
    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop = network(), torch.nn.Dropout(0.5)

        def forward(self, batch):
            return self.drop(self.inner(batch))

    pair = Pair([Dropping(), Dropping()], GROUPS, DENSE, OPTIMIZERS[1])
    for step in range(3):
        pair.train(samples(SIZE, seed=step), [group_rows(shape, SIZE, seed=step) for shape in GROUPS])


def test_weights_with_different_numbers_of_steps_train_without_a_graph() -> None:
    pair = Pair([network(), network()], GROUPS, DENSE, OPTIMIZERS[2])
    step = pair.steps[0]
    # As after a warm start: one weight has the state of another model's optimizer.
    weight = next(step.module.parameters())
    weight.grad = torch.ones_like(weight)
    step.optimizer.step()
    batch, rows = samples(SIZE, seed=0), [group_rows(shape, SIZE, seed=0) for shape in GROUPS]
    before = pair.graphed.state()
    plain = step.train(0, batch, rows)
    step.update()
    assert "number of steps" in pair.graphed.difference_from_eager(0, batch, rows, before, plain)


def test_labels_that_are_too_far_away_are_the_cause_although_weights_have_moved() -> None:
    modules = [network(), network()]
    for module in modules:
        learn_uncertainty(module, 2)
    pair = Pair(modules, GROUPS, DENSE, OPTIMIZERS[0], objective=Objective([Mse(kind="mse")] * 2))
    rows = [group_rows(shape, SIZE, seed=0) for shape in GROUPS]
    pair.train(samples(SIZE, seed=0), rows)
    far = samples(SIZE, seed=1)
    far.labels.flags.writeable = True
    far.labels[3, 1] = 1e30
    pending = pair.graphed.submit(1, far, rows, RATE, lambda: None)
    with pytest.raises(UserError, match="too far from the labels"):
        pair.graphed.finish(pending)


def test_a_loss_that_is_not_finite_names_its_cause() -> None:
    pair = Pair([network(), network()], GROUPS, DENSE, OPTIMIZERS[1])
    rows = [group_rows(shape, SIZE, seed=0) for shape in GROUPS]
    pair.train(samples(SIZE, seed=0), rows)
    bad = samples(SIZE, seed=1)
    bad.dense.flags.writeable = True
    bad.dense[3, 1] = np.inf
    pending = pair.graphed.submit(1, bad, rows, RATE, lambda: None)
    with pytest.raises(UserError, match="dense feature number 1"):
        pair.graphed.finish(pending)


def test_no_more_steps_are_submitted_than_there_are_slots() -> None:
    pair = Pair([network(), network()], GROUPS, DENSE, OPTIMIZERS[1])
    rows = [group_rows(shape, SIZE, seed=0) for shape in GROUPS]
    pair.train(samples(SIZE, seed=0), rows)
    for step in range(1, SLOTS + 1):
        pair.graphed.submit(step, samples(SIZE, seed=step), rows, RATE, lambda: None)

    def failed() -> None:
        raise UserError("the other thread has failed")

    with pytest.raises(UserError, match="other thread"):
        pair.graphed.submit(SLOTS + 1, samples(SIZE, seed=9), rows, RATE, failed)
