"""Pooling by torch's operations, run on the CPU, against pooling by the kernels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.model.shape import FeatureShape
from persia_cli.store.wire_rows import encode_rows
from persia_cli.training.device import CPU, Copier
from persia_cli.training.inputs import GroupShape
from persia_cli.training.pooling import DevicePooling, GroupPooling
from persia_cli.wire.messages import GroupRows
from tests.unit.training.batches import GROUPS, OPTIMIZERS, dense_step, group_rows, inputs

POOLINGS = ("sum", "mean", "sqrtn", "none")


def compare(shape: GroupShape, group: GroupRows, size: int) -> None:
    """Both ways of pooling give the same vectors, masks and gradients."""
    poolings = GroupPooling(shape, Copier(CPU)), DevicePooling(shape, Copier(CPU))
    kernels, device = (pooling.stage(group, pooling.leaf(group)) for pooling in poolings)
    outer = torch.Generator().manual_seed(size)
    gradients = []
    results = []
    for rows in (kernels, device):
        rows.leaf.requires_grad_()
        results.append(rows.pool(size))
    (pooled, sequences), (pooled_too, sequences_too) = results
    assert pooled_too.shape == pooled.shape
    assert pooled_too.is_contiguous()
    assert torch.allclose(pooled, pooled_too, rtol=1e-6, atol=1e-6)
    assert sequences.keys() == sequences_too.keys()
    weights = torch.randn(pooled.shape, generator=outer)
    spread = {name: torch.randn(values.shape, generator=outer) for name, (values, _) in sequences.items()}
    for rows, (vectors, lists) in zip((kernels, device), results, strict=True):
        total = (vectors * weights).sum() + sum((lists[name][0] * spread[name]).sum() for name in lists)
        if total.requires_grad:
            total.backward()
        gradients.append(torch.zeros_like(rows.leaf) if rows.leaf.grad is None else rows.leaf.grad)
    for name, (values, mask) in sequences.items():
        assert torch.equal(mask, sequences_too[name][1])
        assert torch.allclose(values, sequences_too[name][0], rtol=1e-6, atol=1e-6)
    assert torch.allclose(*gradients, rtol=1e-5, atol=1e-5)


@st.composite
def batches(draw) -> tuple[GroupShape, GroupRows, int]:
    """Any mixture of features, with empty and long bags, hash stacks, and ids that come again."""
    size, dim, unique = draw(st.integers(0, 6)), draw(st.sampled_from([1, 3, 8])), draw(st.integers(1, 9))
    poolings = draw(st.lists(st.sampled_from(POOLINGS), min_size=1, max_size=4))
    features = tuple(
        FeatureShape(f"f{n}", dim, pooling, draw(st.integers(1, 4)) if pooling == "none" else None)
        for n, pooling in enumerate(poolings)
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = [encode_rows(rng.standard_normal((unique, dim)).astype(np.float32), "float32")]
    if draw(st.booleans()):
        inverse = rng.integers(0, unique, len(features) * size).astype(np.int32)
        return GroupShape(dim, features), GroupRows(rows, inverse, None), size
    rounds = tuple(draw(st.integers(1, 3)) for _ in features)
    counts = rng.integers(0, 6, (len(features), size)) * np.array(rounds)[:, None]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
    inverse = rng.integers(0, unique, offsets[-1]).astype(np.int32)
    return GroupShape(dim, features, rounds=rounds), GroupRows(rows, inverse, offsets), size


@given(batches())
@settings(max_examples=60)
def test_any_batch_is_pooled_as_by_the_kernels(batch):
    compare(*batch)


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16"])
def test_rows_of_every_wire_dtype_are_decoded(wire):
    shape = GroupShape(4, GROUPS[0].features, wire)
    compare(shape, group_rows(shape, 16, seed=1, servers=3), 16)


def test_a_batch_without_samples_or_rows_goes_through():
    none = GroupRows([], np.empty(0, np.int32), np.zeros(1, np.uint32))
    features = (FeatureShape("x", 3, "mean"), FeatureShape("clicks", 3, "none", 2))
    compare(GroupShape(3, features), none, 0)
    compare(GroupShape(3, features[1:]), none, 0)


@pytest.mark.parametrize("what", ["row", "offset"])
def test_entries_that_fit_no_row_are_refused(what):
    group = group_rows(GROUPS[0], 5, seed=1)
    inverse, offsets = group.inverse.copy(), group.offsets.copy()
    if what == "row":
        inverse[3] = 20
    else:
        offsets[-1] += 1
    pooling = DevicePooling(GROUPS[0], Copier(CPU))
    with pytest.raises(ValueError, match="point outside"):
        pooling.stage(GroupRows(group.rows, inverse, offsets), pooling.leaf(group))


def test_infinite_rows_do_not_affect_sequences_without_them():
    shape = GroupShape(2, (FeatureShape("clicks", 2, "none", 3),))
    rows = np.array([[np.inf, np.nan], [1, 2]], np.float32)
    group = GroupRows([encode_rows(rows, "float32")], np.array([0, 1], np.int32), np.array([0, 1, 2], np.uint32))
    pooling = DevicePooling(shape, Copier(CPU))
    staged = pooling.stage(group, pooling.leaf(group))
    staged.leaf.requires_grad_()
    values = staged.pool(2)[1]["clicks"][0]
    values[1].sum().backward()
    assert values[1].tolist() == [[1, 2], [0, 0], [0, 0]]
    assert staged.leaf.grad.tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_whole_steps_are_those_by_the_kernels(precision):
    made = [
        dense_step(config=OPTIMIZERS[1], by_kernels=by_kernels, precision=precision) for by_kernels in (True, False)
    ]
    for number in range(4):
        batch, groups = inputs(number, 16)
        first, second = (step.train(number, batch, groups) for step in made)
        for step in made:
            step.update()
        near = {"float32": 1e-4, "bfloat16": 2e-2}[precision]
        assert first.logits == pytest.approx(second.logits, rel=near, abs=near)
        for ours, theirs in zip(first.gradients, second.gradients, strict=True):
            assert ours == pytest.approx(theirs, rel=near, abs=near * float(np.abs(ours).max()))
        assert made[0].evaluate(0, batch, groups).logits == pytest.approx(
            made[1].evaluate(0, batch, groups).logits, rel=near, abs=near
        )
