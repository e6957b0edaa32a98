"""Pooling as the network sees it, forward and backward, against torch's embedding_bag and padded indexing."""

import numpy as np
import pytest
import torch

from persia_cli.model.shape import FeatureShape
from persia_cli.store.wire_rows import decode_rows, encode_rows
from persia_cli.train.inputs import GroupShape
from persia_cli.train.pooling import GroupPooling, model_batch
from persia_cli.wire.messages import GroupRows
from tests.unit.train.batches import GROUPS, bagged, group_rows


def applied(shape: GroupShape, group: GroupRows, size: int):
    pooling = GroupPooling(shape)
    leaf = pooling.leaf(group).requires_grad_()
    return leaf, *pooling.apply(leaf, group, size)


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("shape", GROUPS)
def test_pooled_features_and_gradients_are_those_of_embedding_bag(shape, size):
    group = group_rows(shape, size, seed=size)
    leaf, pooled, _ = applied(shape, group, size)
    rows = leaf.detach().clone().requires_grad_()
    expected = torch.stack(
        [bagged(rows, group, number, feature.pooling, size) for number, feature in enumerate(shape.features)], dim=1
    )
    assert pooled.detach().numpy() == pytest.approx(expected.detach().numpy(), abs=1e-6)
    outer = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1))
    pooled.backward(outer)
    expected.backward(outer)
    assert leaf.grad.numpy() == pytest.approx(rows.grad.numpy(), abs=1e-5)


def test_samples_without_ids_are_zeros_and_give_no_gradient():
    shape = GROUPS[0]
    none = GroupRows(
        [encode_rows(np.ones((2, 4), np.float32), "float32")], np.empty(0, np.int32), np.zeros(3 * 5 + 1, np.uint32)
    )
    leaf, pooled, _ = applied(shape, none, 5)
    assert pooled.shape == (5, 3, 4)
    pooled.sum().backward()
    assert not pooled.any()
    assert not leaf.grad.any()


def test_a_batch_without_samples_or_rows_goes_through():
    none = GroupRows([], np.empty(0, np.int32), np.zeros(1, np.uint32))
    leaf, pooled, _ = applied(GROUPS[0], none, 0)
    pooled.sum().backward()
    assert pooled.shape == (0, 3, 4)
    assert leaf.grad.shape == (0, 4)


def test_one_id_per_sample_needs_no_offsets():
    shape, size = GROUPS[0], 6
    inverse = np.random.default_rng(0).integers(0, 9, 3 * size).astype(np.int32)
    rows = [encode_rows(np.random.default_rng(1).standard_normal((9, 4)).astype(np.float32), "float32")]
    plain = applied(shape, GroupRows(rows, inverse, None), size)
    spelled = applied(shape, GroupRows(rows, inverse, np.arange(3 * size + 1, dtype=np.uint32)), size)
    for leaf, pooled, _ in (plain, spelled):
        (pooled * torch.arange(4)).sum().backward()
        assert leaf.grad.any()
    assert torch.equal(plain[1], spelled[1])
    assert torch.equal(plain[0].grad, spelled[0].grad)


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16"])
def test_rows_are_decoded_from_the_wire_into_a_copy(wire):
    shape = GroupShape(4, GROUPS[0].features, wire)
    blocks = [encode_rows(np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32), wire) for n in (3, 0, 2)]
    for block in blocks:
        block.flags.writeable = False
    leaf = GroupPooling(shape).leaf(GroupRows(blocks, np.empty(0, np.int32), None))
    assert leaf.dtype == torch.float32
    assert np.array_equal(leaf.numpy(), np.concatenate([decode_rows(block, 4, wire) for block in blocks]))
    assert not any(np.shares_memory(leaf.numpy(), block) for block in blocks)


def test_an_id_of_a_hash_stack_is_the_sum_of_its_rows():
    names = ("sum", "mean", "sqrtn", "none")
    features = tuple(FeatureShape(name, 2, name, 3 if name == "none" else None) for name in names)
    shape = GroupShape(2, features, rounds=(2, 2, 2, 2))
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    inverse = np.tile(np.array([0, 1, 2, 3, 4, 5], np.int32), 4)
    offsets = np.array([0, 4, 6, 10, 12, 16, 18, 22, 24], np.uint32)
    group = GroupRows([encode_rows(rows, "float32")], inverse, offsets)
    leaf, pooled, sequences = applied(shape, group, 2)
    values, mask = sequences["none"]
    first, second, third = rows[0] + rows[1], rows[2] + rows[3], rows[4] + rows[5]
    two = first + second
    assert pooled[0].detach().numpy() == pytest.approx(np.array([two, two / 2, two / np.sqrt(2, dtype=np.float32)]))
    assert pooled[1].detach().numpy() == pytest.approx(np.array([third] * 3))
    assert mask.tolist() == [[True, True, False], [True, False, False]]
    assert values[0].tolist() == [first.tolist(), second.tolist(), [0, 0]]
    assert values[1].tolist() == [third.tolist(), [0, 0], [0, 0]]
    (pooled.sum() + values.sum()).backward()
    share = 1 + 1 / 2 + 1 / np.sqrt(2) + 1
    assert leaf.grad.numpy() == pytest.approx(np.array([[share] * 2] * 4 + [[4, 4]] * 2), rel=1e-6)


@pytest.mark.parametrize("one_id", [False, True])
def test_sequences_are_padded_masked_and_differentiable(one_id):
    features = (FeatureShape("x", 3, "sum"), FeatureShape("clicks", 3, "none", 2), FeatureShape("y", 3, "mean"))
    shape, size = GroupShape(3, features), 8
    group = group_rows(shape, size, seed=5)
    if one_id:
        group = GroupRows(group.rows, np.arange(3 * size, dtype=np.int32) % 20, None)
    offsets = np.arange(3 * size + 1) if group.offsets is None else group.offsets
    leaf, pooled, sequences = applied(shape, group, size)
    values, mask = sequences["clicks"]
    rows = leaf.detach().clone().requires_grad_()
    total = torch.zeros(())
    for sample in range(size):
        bag = slice(offsets[size + sample], offsets[size + sample + 1])
        newest = torch.tensor(group.inverse[bag][-2:].astype(np.int64))
        assert mask[sample].tolist() == [position < len(newest) for position in range(2)]
        assert torch.equal(values[sample, : len(newest)], rows[newest])
        assert not values[sample, len(newest) :].any()
        total = total + (rows[newest] * torch.arange(1.0, 4.0) * (sample + 1)).sum()
    (values * torch.arange(1.0, 4.0) * torch.arange(1.0, size + 1)[:, None, None]).sum().backward(retain_graph=True)
    total.backward()
    assert leaf.grad.numpy() == pytest.approx(rows.grad.numpy(), abs=1e-5)
    assert pooled.shape == (size, 2, 3)


def test_gradients_through_pooled_and_sequences_add_up():
    features = (FeatureShape("x", 3, "sum"), FeatureShape("clicks", 3, "none", 5))
    shape, size = GroupShape(3, features), 4
    group = group_rows(shape, size, seed=2)
    leaf, pooled, sequences = applied(shape, group, size)
    (pooled.sum() + sequences["clicks"][0].sum()).backward()
    counts = np.bincount(group.inverse, minlength=20)
    assert np.array_equal(leaf.grad.numpy(), np.repeat(counts[:, None], 3, axis=1).astype(np.float32))


def test_groups_come_together_with_their_names():
    groups = [group_rows(shape, 5, seed=3) for shape in GROUPS]
    poolings = [GroupPooling(shape) for shape in GROUPS]
    staged = [pooling.stage(group, pooling.leaf(group)) for pooling, group in zip(poolings, groups, strict=True)]
    batch = model_batch(poolings, staged, torch.zeros(5, 3))
    assert list(batch.pooled) == ["a", "b", "c", "d"]
    assert batch.pooled["d"].shape == (5, 2)
    assert [mine.leaf.data_ptr() == rows.rows[0].ctypes.data for mine, rows in zip(staged, groups, strict=True)] == [
        False
    ] * 2
