"""The loss of next elements against plain torch in float64, which goes through positions and candidates one by one."""

import copy
import math
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from persia_cli.config.schema import SampledSoftmax
from persia_cli.config.schema.sequences import Sequential
from persia_cli.model.build import build_model
from persia_cli.model.ragged import RaggedLayout
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.store.wire_rows import encode_rows
from persia_cli.training.distributed import World
from persia_cli.training.inputs import WHOLE, GroupShape, Samples, StepParts
from persia_cli.training.loss import Objective
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.training.step import DenseStep, StepSettings
from persia_cli.wire.messages import GroupRows
from tests.unit.model.kinds import KINDS
from tests.unit.training import ranks
from tests.unit.training.batches import SGD

DIM, LONGEST, ROWS, STEP = 4, 5, 40, 3
FEATURES = (
    FeatureShape("f0", DIM, "sum", table=0),
    FeatureShape("clicked", DIM, "none", LONGEST, table=0),
    FeatureShape("negatives", DIM, "negatives", table=0),
)
NETWORKS = {model.kind: model for model in KINDS if isinstance(model, Sequential)}
NETWORKS["hstu_timed"] = NETWORKS["hstu"]
HISTORIES = [[9, 4, 9, 1], [5], [3, 3], [1, 2, 3, 4, 5, 6, 7, 8], [0, 39, 0, 4, 9, 9], [2, 9, 5], [7, 7, 7]]
"""Rows of each sample's sequence, of which the network reads the five newest, and then of its item."""
LABELS = [1.0, 1.0, 0.5, 1.0, 0.0, math.nan, 1.0]
WEIGHTS = [0.5, 1.0, 2.0, 1.5, 1.0, 3.0, 0.0]
NEGATIVES = [4, 20, 21, 4, 9, 39, 30]
SHARE = 0.25
"""Probability that an item is among the drawn negatives."""
GAPS = (10.0 ** np.random.default_rng(2).uniform(-1, 6, (7, LONGEST))).astype(np.float32)
"""Times from each sample's newest elements to the next."""
LOG_Q = np.log(np.linspace(0.01, 1.0, ROWS)).astype(np.float32)
"""Log probability of each row's item to be in a batch."""


def loss_of(**changes: Any) -> SampledSoftmax:
    """A loss with a temperature."""
    return SampledSoftmax(**{"kind": "sampled_softmax", "negatives": 50, "temperature": 0.7} | changes)


def network_of(kind: str) -> torch.nn.Module:
    """A network with weights that are not small."""
    shape = InputShape(0, FEATURES[:2], 1)
    if kind == "hstu_timed":
        shape = InputShape(LONGEST, FEATURES[:2], 1, times_of=("clicked",))
    network = build_model(NETWORKS[kind], shape, seed=0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return network


def step_of(network: torch.nn.Module, loss: SampledSoftmax, parts: StepParts = WHOLE, **changes: Any) -> DenseStep:
    """The step of a rank."""
    settings = StepSettings(Objective([loss]), parts=parts, by_kernels=changes.pop("by_kernels", True))
    groups = [GroupShape(DIM, FEATURES)]
    dense = LONGEST if network.timed else 0
    return DenseStep(network, dense_optimizer(SGD, network), groups, changes.pop("world", World()), dense, 7, settings)


def positions(loss: SampledSoftmax, chosen: range, trains: bool = True) -> list[list[float]]:
    """The weight of each element of some samples' sequences as a position."""
    found = []
    for sample in chosen:
        length = len(HISTORIES[sample]) - 1
        learns = [trains and loss.positions == "all" and length - at <= LONGEST for at in range(length)]
        own = [WEIGHTS[sample] * each for each in learns]
        own[length - 1 :] = [WEIGHTS[sample] * LABELS[sample]][:length]
        found.append([0.0] * length if math.isnan(LABELS[sample]) else own)
    return found


def batch_of(
    loss: SampledSoftmax, chosen: range = range(7), trains: bool = True, timed: bool = False
) -> tuple[Samples, list[GroupRows]]:
    """Some samples as a rank gets them; the divisor is that of all samples."""
    histories, draws = [HISTORIES[sample] for sample in chosen], trains and loss.candidates == "uniform"
    items, elements = [each[-1:] for each in histories], [each[:-1] for each in histories]
    bags = [*items, *elements, *([NEGATIVES if draws else [], *[[]] * (len(chosen) - 1)] if chosen else [])]
    offsets = np.cumsum([0, *map(len, bags)]).astype(np.uint32)
    values = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
    rows = GroupRows([encode_rows(values, "float32")], np.array([*chain(*bags)], np.int32), offsets)
    samples = Samples(
        _gaps(chosen) if timed else np.empty((len(chosen), 0), np.float32),
        np.array([LABELS[sample] for sample in chosen], np.float32).reshape(-1, 1),
        np.array([WEIGHTS[sample] for sample in chosen], np.float32),
        [sum(map(sum, positions(loss, range(7))))],
        drawn_share=SHARE if draws else 0.0,
        log_q=LOG_Q[np.array([*chain(*elements, *items)], np.int64)] if trains and not draws else None,
    )
    return samples, [rows]


def _gaps(chosen: range) -> np.ndarray:
    lengths = np.array([len(HISTORIES[sample]) - 1 for sample in chosen])
    return GAPS[chosen.start : chosen.stop] * (np.arange(LONGEST) < lengths[:, None])


def plain(
    network: torch.nn.Module, leaf: torch.Tensor, loss: SampledSoftmax, trains: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits [n] of all samples, and the sum of weighted losses."""
    weights = positions(loss, range(7), trains)
    targets = {
        history[at + 1] for own, history in zip(weights, HISTORIES, strict=True) for at in range(len(own)) if own[at]
    }
    log_q = dict.fromkeys(NEGATIVES, math.log(SHARE)) if loss.candidates == "uniform" else dict(enumerate(LOG_Q))
    if not trains:
        known = [not math.isnan(label) and weight > 0 for label, weight in zip(LABELS, WEIGHTS, strict=True)]
        targets = {history[-1] for history, there in zip(HISTORIES, known, strict=True) if there}
        log_q = dict.fromkeys(targets, 0.0)
    candidates = set(NEGATIVES) if trains and loss.candidates == "uniform" else targets
    logits, total = [], leaf.new_zeros(())
    for sample, (own, history) in enumerate(zip(weights, HISTORIES, strict=True)):
        read = history[:-1][-LONGEST:]
        if not read:
            logits.append(leaf.new_zeros(()))
            continue
        gaps = torch.from_numpy(GAPS[sample, : len(read)]) if network.timed else None
        layout = RaggedLayout([len(read)], [len(read)], torch.arange(len(read) - 1, -1, -1), gaps)
        states = network.states(leaf[read], layout)
        logits.append(states[-1] @ leaf[history[-1]])
        for state, target, weight in zip(states, history[-len(read) :], own[-len(read) :], strict=True):
            score = state @ leaf[target] / loss.temperature
            others = [state @ leaf[row] / loss.temperature - float(log_q[row]) for row in candidates - {target}]
            total = total + weight * (torch.logsumexp(torch.stack([score, *others]), 0) - score)
    return torch.stack(logits), total


@pytest.mark.parametrize("parts", [WHOLE, StepParts(3, 3)], ids=["whole", "parts"])
@pytest.mark.parametrize("by_kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("places", ["all", "last"])
@pytest.mark.parametrize("candidates", ["uniform", "batch"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_step_is_that_of_plain_torch(kind, candidates, places, by_kernels, parts):
    loss = loss_of(candidates=candidates, positions=places)
    network = network_of(kind)
    twin = copy.deepcopy(network).double()
    samples, groups = batch_of(loss, timed=network.timed)
    result = step_of(network, loss, parts, by_kernels=by_kernels).train(STEP, samples, groups)
    leaf = torch.from_numpy(np.concatenate(groups[0].rows).view(np.float32)).double().requires_grad_()
    logits, total = plain(twin, leaf, loss)
    (total / samples.weight_totals[0]).backward()
    assert result.logits[:, 0] == pytest.approx(logits.detach().numpy(), abs=1e-5)
    assert result.loss_sum[0] == pytest.approx(float(total.detach()), rel=1e-5)
    assert result.position_weight == pytest.approx(samples.weight_totals[0])
    assert result.gradients[0] == pytest.approx(leaf.grad.numpy(), abs=1e-5)
    for (name, mine), other in zip(network.named_parameters(), twin.parameters(), strict=True):
        assert mine.grad.numpy() == pytest.approx(other.grad.numpy(), abs=1e-5), name


@pytest.mark.parametrize("candidates", ["uniform", "batch"])
def test_an_evaluation_ranks_the_items_of_its_step_after_whole_sequences(candidates):
    loss, network = loss_of(candidates=candidates), network_of("sasrec")
    samples, groups = batch_of(loss, trains=False)
    scored = step_of(network, loss).evaluate(STEP, samples, groups)
    leaf = torch.from_numpy(np.concatenate(groups[0].rows).view(np.float32)).double()
    logits, total = plain(copy.deepcopy(network).double(), leaf, loss, trains=False)
    assert scored.logits[:, 0] == pytest.approx(logits.detach().numpy(), abs=1e-5)
    assert scored.loss_sum[0] == pytest.approx(float(total.detach()), rel=1e-5)
    assert scored.position_weight == pytest.approx(sum(map(sum, positions(loss, range(7), trains=False))))


def test_items_of_samples_with_label_0_are_candidates_of_an_evaluation(monkeypatch):
    monkeypatch.setitem(globals(), "LABELS", [1.0, *[0.0] * 6])
    loss, network = loss_of(), network_of("sasrec")
    scored = step_of(network, loss).evaluate(STEP, *batch_of(loss, trains=False))
    assert scored.loss_sum[0] > 0.1, "the item of the one positive sample competes with the others"
    assert scored.position_weight == WEIGHTS[0]


def halves(world: World) -> ranks.Results:
    """Train a rank's part of a step with the candidates of all, and a step in which one rank has no samples."""
    loss, found = loss_of(), {}
    for number, cuts in enumerate((((0, 7),), ((0, 4), (4, 7)), ((0, 7), (7, 7)))):
        if len(cuts) != world.size and not (world.size == 2 and number == 2):
            continue
        samples, groups = batch_of(loss, range(*cuts[world.rank]))
        network = network_of("hstu")
        result = step_of(network, loss, world=world).train(STEP, samples, groups)
        key = 1 if world.size == 1 else number
        found[f"rows/{key}"] = result.gradients[0]
        found[f"loss/{key}"] = np.array([result.loss_sum[0], result.position_weight])
        found |= {f"{name}/{key}": weight.grad.numpy() for name, weight in network.named_parameters()}
    return found


def test_two_ranks_together_have_the_gradients_and_the_loss_of_one(tmp_path: Path):
    both = ranks.on_ranks(halves, 2, tmp_path)
    one = {name.partition("/")[0]: value for name, value in halves(World()).items()}
    for key in both[0]:
        name = key.partition("/")[0]
        found = both[0][key] + both[1][key] if name in ("rows", "loss") else both[0][key]
        assert found == pytest.approx(one[name], rel=1e-4, abs=1e-6), key


def test_more_items_than_candidates_are_chosen_by_the_step_alone():
    few, network = loss_of(candidates="batch", negatives=3), network_of("sasrec")
    results = [step_of(network, few).train(number, *batch_of(few)).loss_sum for number in (1, 1, 2)]
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_a_batch_without_positions_has_no_loss_and_zero_gradients():
    loss, network = loss_of(), network_of("ligr")
    for chosen in (range(1, 2), range(0)):
        samples, groups = batch_of(loss, chosen)
        result = step_of(network, loss).train(STEP, samples, groups)
        assert not result.loss_sum.any()
        assert not result.gradients[0].any()
        assert not any(weight.grad.any() for weight in network.parameters())


def test_a_sample_without_exactly_one_item_is_refused():
    loss = loss_of()
    samples, [rows] = batch_of(loss, range(2))
    offsets = rows.offsets.copy()
    offsets[1] = 2
    with pytest.raises(ValueError, match="exactly one item"):
        step_of(network_of("sasrec"), loss).train(STEP, samples, [GroupRows(rows.rows, rows.inverse, offsets)])
