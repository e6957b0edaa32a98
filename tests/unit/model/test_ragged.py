"""Ragged batches: their layout, and networks with the same states in each, which depend on no later element."""

import time
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from persia_cli.config.schema.sequences import Sequential
from persia_cli.model.build import build_model
from persia_cli.model.ragged import BLOCKS, RaggedLayout, padded, plan
from tests.unit.model.kinds import KINDS, shape_for

LENGTH, DIM = 9, 4
MODELS = [model for model in KINDS if isinstance(model, Sequential)]
LENGTHS = st.lists(st.sampled_from([0, 1, 1, 2, 3, LENGTH]) | st.integers(0, LENGTH), max_size=30)


@cache
def network_of(kind: str) -> nn.Module:
    """The network of a kind in float64, with weights that are not small."""
    [model] = [model for model in MODELS if model.kind == kind]
    shape = shape_for(model)
    sequence = shape.sequences[0]
    shape = type(shape)(0, (shape.pooled[0], type(sequence)(sequence.name, DIM, "none", LENGTH)), 1)
    network = build_model(model, shape, seed=0).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=generator))
    return network


def states_by_element(network: nn.Module, rows: torch.Tensor, lengths: np.ndarray) -> torch.Tensor:
    """The states [elements, dim] of sequences that follow each other in `rows`, through a ragged batch."""
    slots = plan(lengths)
    stops = np.cumsum(lengths)
    entries = torch.from_numpy(stops[slots.sequence] - 1 - slots.age.clip(min=0))
    layout = RaggedLayout(slots.sizes, slots.widths, torch.from_numpy(slots.age.clip(min=0)))
    states = network.states(rows[entries], layout)
    real = torch.from_numpy(np.flatnonzero(slots.age >= 0))
    return torch.zeros_like(rows).index_put((entries[real],), states[real])


def states_when_padded(network: nn.Module, rows: torch.Tensor, lengths: np.ndarray) -> torch.Tensor:
    """The same through the padded batch, as served models read it."""
    mask = torch.arange(LENGTH) < torch.from_numpy(lengths).unsqueeze(1)
    values = torch.zeros(len(lengths), LENGTH, DIM, dtype=rows.dtype).masked_scatter(mask.unsqueeze(2), rows)
    return network.states(values.flatten(0, 1), padded(mask))[mask.flatten()]


def results(states: torch.Tensor, network: nn.Module, rows: torch.Tensor) -> list[torch.Tensor]:
    """The states, and the gradients of the rows and of all weights, of a sum with random factors."""
    factors = torch.randn(states.shape, generator=torch.Generator().manual_seed(2), dtype=states.dtype)
    gradients = torch.autograd.grad((states * factors).sum(), [rows, *network.parameters()])
    return [states, *gradients]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
@settings(max_examples=25)
@given(lengths=LENGTHS)
def test_states_and_gradients_are_those_of_the_padded_batch(model, lengths):
    network, lengths = network_of(model.kind), np.array(lengths, np.int64)
    rows = torch.randn(int(lengths.sum()), DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows.requires_grad_()
    ragged = results(states_by_element(network, rows, lengths), network, rows)
    whole = results(states_when_padded(network, rows, lengths), network, rows)
    for ours, expected in zip(ragged, whole, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
@settings(max_examples=25)
@given(lengths=LENGTHS, seed=st.integers(0, 2**16))
def test_no_state_depends_on_a_later_element_or_another_sequence(model, lengths, seed):
    network, lengths = network_of(model.kind), np.array([*lengths, 3], np.int64)
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(int(lengths.sum()), DIM, generator=draw, dtype=torch.float64)
    changed = int(torch.randint(len(rows), (), generator=draw))
    others = rows.clone()
    others[changed] += torch.randn(DIM, generator=draw, dtype=torch.float64)
    moved = (states_by_element(network, rows, lengths) - states_by_element(network, others, lengths)).abs().amax(1)
    end = int(np.cumsum(lengths)[np.searchsorted(np.cumsum(lengths), changed, side="right")])
    assert moved[changed] > 1e-9
    assert not moved[:changed].gt(1e-12).any()
    assert not moved[end:].gt(1e-12).any()


@given(lengths=st.lists(st.integers(0, 400), max_size=300))
def test_a_layout_has_each_element_once_in_few_blocks(lengths):
    lengths = np.array(lengths, np.int64)
    slots = plan(lengths)
    assert len(slots.sizes) == len(slots.widths) <= BLOCKS
    assert sum(slots.sizes) == slots.sequence.size == slots.age.size
    real = slots.age >= 0
    elements = sorted(zip(slots.sequence[real].tolist(), slots.age[real].tolist(), strict=True))
    assert elements == [(number, age) for number, length in enumerate(lengths.tolist()) for age in range(length)]
    for ages, width in zip(np.split(slots.age, np.cumsum(slots.sizes)[:-1]), slots.widths, strict=True):
        # Each sequence begins at the begin of a row and is padded at its end.
        assert (np.diff(ages.reshape(-1, width), axis=1) == -1).all()


def test_a_layout_has_hardly_any_padding_and_is_cheap():
    rng = np.random.default_rng(0)
    for mean, longest, most in ((8.9, 50, 1.16), (130.0, 200, 1.12)):
        batches = [rng.geometric(1 / mean, 128).clip(max=longest).astype(np.int64) for _ in range(20)]
        slots = sum(plan(lengths).age.size for lengths in batches)
        assert slots < most * sum(int(lengths.sum()) for lengths in batches)
        begin = time.process_time()
        for lengths in batches:
            plan(lengths)
        assert time.process_time() - begin < 20 * 0.003, "each takes about 0.3 ms"
