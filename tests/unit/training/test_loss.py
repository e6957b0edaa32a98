"""The loss: weights, tasks, and parts of ranks that add up."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from persia_cli.config.schema import BCE, Bce, Bpr, DenseAdam, Ffnn, Focal, Huber, Mse, Pairwise, Poisson
from persia_cli.data.read.ids import NULL_ID
from persia_cli.model.build import build_model
from persia_cli.model.uncertainty import log_variances_of
from persia_cli.training.loss import Objective, RemoteSamples
from persia_cli.training.optimizer import penalties
from tests.support.losses import batch_loss, mean_of_pairs
from tests.unit.training.batches import SHAPE, TASKS

PLAIN = Objective([BCE] * 3)


def part_of(objective: Objective, weighted: torch.Tensor, total: float) -> torch.Tensor:
    """The loss where all labels are known, whose weights then have the same sum."""
    return objective.part(weighted, [total] * len(objective.losses))


def made_up(size: int = 12, tasks: int = 3):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(size, tasks, generator=generator, requires_grad=True)
    return (
        logits,
        torch.randint(0, 2, (size, tasks), generator=generator).float(),
        torch.rand(size, generator=generator),
    )


def test_without_weights_it_is_the_mean_that_torch_takes():
    logits, labels, _ = made_up()
    loss = part_of(PLAIN, PLAIN.weighted(logits, labels, None), 12.0)
    assert loss.item() == pytest.approx(functional.binary_cross_entropy_with_logits(logits, labels).item(), rel=1e-6)


@pytest.mark.parametrize("loss", [Poisson(kind="poisson"), Mse(kind="mse")])
def test_a_sample_without_weight_adds_no_infinite_loss(loss):
    logits = torch.tensor([[1e30], [0.5], [-1e30]], requires_grad=True)
    labels, weights = torch.tensor([[0.0], [2.0], [1e30]]), torch.tensor([0.0, 3.0, 0.0])
    objective = Objective([loss])
    whole = part_of(objective, objective.weighted(logits, labels, weights), 3.0)
    alone = part_of(objective, objective.weighted(logits[1:2], labels[1:2], None), 1.0)
    assert whole.item() == pytest.approx(alone.item())
    whole.backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[1] != 0.0
    assert not logits.grad[::2].any()


@pytest.mark.parametrize("loss", [BCE, Focal(kind="focal", gamma=0.5, alpha=None)], ids=["bce", "focal"])
def test_far_logits_have_a_finite_loss_and_gradient(loss):
    logits = torch.tensor([[1e4], [-1e4], [1e4], [-1e4]], requires_grad=True)
    losses = Objective([loss]).weighted(logits, torch.tensor([[1.0], [1.0], [0.0], [0.0]]), None)
    assert losses.flatten().tolist() == [0.0, 1e4, 1e4, 0.0]
    losses.sum().backward()
    assert torch.allclose(logits.grad.flatten(), torch.tensor([0.0, -1.0, 1.0, 0.0]))


KINDS = [
    Bce(kind="bce", weight=3.0),
    Focal(kind="focal", weight=0.5),
    Focal(kind="focal", gamma=0.5, alpha=None),
    Pairwise(kind="pairwise", weight=2.0),
    Bce(kind="bce", smoothing=0.1),
    Focal(kind="focal", smoothing=0.3),
    Mse(kind="mse"),
    Huber(kind="huber", delta=0.25),
]
FINITE = {"allow_nan": False, "allow_infinity": False, "width": 32}
SAMPLES = st.lists(
    st.tuples(
        st.floats(-30, 30, **FINITE),
        # Not labels so close to each other that their difference, which weighs a pair, is 0 in float32.
        st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, **FINITE).map(lambda label: round(label, 6))),
        st.one_of(st.just(0.0), st.floats(0.125, 8, **FINITE)),
    ),
    min_size=1,
    max_size=12,
)


@given(SAMPLES, st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
def test_any_mixture_has_the_loss_and_gradient_of_the_plain_formulas(samples, kinds):
    columns = torch.tensor(samples).T
    logits, labels = (column.unsqueeze(1).repeat(1, len(kinds)) for column in columns[:2])
    weights = columns[2]
    total = float(weights.double().sum())
    ours, plain = logits.clone().requires_grad_(), logits.double().requires_grad_()
    objective = Objective(kinds)
    loss = part_of(objective, objective.weighted(ours, labels, weights), total)
    loss.backward()
    if total == 0:
        assert loss.item() == 0.0
        assert not ours.grad.any()
        return
    expected = batch_loss(kinds, plain, labels.double(), weights.double())
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    assert torch.allclose(ours.grad.double(), plain.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("queries", [None, torch.tensor([3, -1, 3, NULL_ID] * 5)], ids=["all", "of one query"])
@pytest.mark.parametrize("soft", [False, True])
def test_parts_of_ranks_have_the_loss_and_the_gradient_of_all_pairs(soft, queries):
    logits, labels, weights = made_up(20, 1)
    labels = torch.rand(20, 1, generator=torch.Generator().manual_seed(1)) if soft else labels
    objective = Objective([Pairwise(kind="pairwise") if queries is None else Bpr(kind="bpr")])
    total = float(weights.sum())
    ours, values = torch.zeros(20, 1), []
    for share in (slice(0, 3), slice(3, 20), slice(20, 20)):
        mine = logits[share].detach().clone().requires_grad_()
        rest = torch.ones(20, dtype=torch.bool)
        rest[share] = False
        theirs, mine_of = (None, None) if queries is None else (queries[rest], queries[share])
        others = RemoteSamples(logits[rest].detach(), labels[rest], weights[rest, None], theirs)
        weighted = objective.weighted(mine, labels[share], weights[share], others=others, queries=mine_of)
        part = part_of(objective, weighted, total)
        part.backward()
        ours[share] = mine.grad
        values.append(part.item())
    expected = mean_of_pairs(logits[:, 0], labels[:, 0], weights, queries)
    expected.backward()
    assert sum(values) == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(ours, logits.grad, rtol=1e-4, atol=1e-7)
    assert values[2] == 0.0


@given(SAMPLES, st.lists(st.sampled_from([0, 1, 2, NULL_ID]), min_size=12, max_size=12))
def test_pairs_in_queries_have_the_loss_and_gradient_of_the_formula(samples, queries):
    z, y, w = torch.tensor(samples).T
    of = torch.tensor(queries[: len(z)])
    ours, plain = z.clone().requires_grad_(), z.double().requires_grad_()
    objective, total = Objective([Bpr(kind="bpr")]), float(w.double().sum())
    loss = part_of(objective, objective.weighted(ours.unsqueeze(1), y.unsqueeze(1), w, queries=of), total)
    loss.backward()
    expected = mean_of_pairs(plain, y.double(), w.double(), of)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    assert torch.allclose(ours.grad.double(), plain.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "torchs"),
    [
        (Mse(kind="mse"), nn.MSELoss()),
        (Huber(kind="huber", delta=2.5), nn.HuberLoss(delta=2.5)),
        (Poisson(kind="poisson"), nn.PoissonNLLLoss()),
    ],
)
def test_losses_of_numbers_are_torchs(loss, torchs):
    logits, _, _ = made_up(50, 1)
    labels = torch.arange(50.0).unsqueeze(1) / 7
    objective, ours = Objective([loss]), logits.detach().clone().requires_grad_()
    value = part_of(objective, objective.weighted(ours, labels, None), 50.0)
    value.backward()
    expected = torchs(logits, labels)
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(ours.grad, logits.grad, rtol=1e-5, atol=1e-8)


@given(st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3))
def test_uncertain_tasks_have_the_likelihood_of_the_paper(logs):
    logits, labels, weights = made_up()
    kinds = [Mse(kind="mse"), Bce(kind="bce", weight=2.0), Huber(kind="huber")]
    ours, theirs = (torch.tensor(logs, requires_grad=True) for _ in range(2))
    objective, shares = Objective(kinds), [slice(0, 5), slice(5, 12), slice(12, 12)]
    total = float(weights.sum())
    parts = [
        part_of(objective, objective.weighted(logits[share], labels[share], weights[share], ours), total)
        for share in shares
    ]
    loss = sum(parts, torch.zeros(()))
    loss.backward()
    expected = batch_loss(kinds, logits.detach(), labels, weights, theirs)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert parts[2].item() == 0.0


def test_it_changes_neither_logits_nor_initial_weights_and_is_not_decayed():
    model = Ffnn(kind="ffnn", dim=4, hidden=(8,))
    plain, learns = (build_model(model, replace(SHAPE, uncertainty=each), 0).eval() for each in (False, True))
    assert torch.equal(log_variances_of(learns), torch.zeros(TASKS))
    assert log_variances_of(plain) is None
    weights = learns.state_dict()
    assert weights.pop("task_uncertainty.log_variances").shape == (TASKS,)
    assert all(torch.equal(weights[name], value) for name, value in plain.state_dict().items())
    given = penalties(DenseAdam(kind="adam", lr=0.1, l2=0.5), learns)
    assert {penalty for name, penalty in given.items() if name.startswith("task_uncertainty")} == {0.0}
