"""Gradients of rows are sent once, complete, and from within backward if every leaf has one."""

import gc
import weakref

import torch

from persia_cli.train.row_gradients import RowGradientHooks


def leaves(count: int) -> list[torch.Tensor]:
    return [torch.full((3, 2), float(number + 1), requires_grad=True) for number in range(count)]


def test_they_leave_within_backward_when_the_last_is_complete() -> None:
    rows, sent = leaves(3), []
    returned = False

    def send() -> None:
        assert not returned
        sent.append([row.grad.clone() for row in rows if row.grad is not None])

    outgoing = RowGradientHooks(rows, send)
    # Each leaf is used twice, so that its gradient is a sum.
    sum((row * row).sum() + 2 * row.sum() for row in rows).backward()
    returned = True
    outgoing.finish()
    (gradients,) = sent
    assert [float(gradient[0, 0]) for gradient in gradients] == [4.0, 6.0, 8.0]


def test_a_leaf_without_gradient_is_complete_when_backward_returns() -> None:
    rows, sent = leaves(2), []
    outgoing = RowGradientHooks(rows, lambda: sent.append([row.grad is not None for row in rows]))
    rows[0].sum().backward()
    assert sent == []
    outgoing.finish()
    outgoing.finish()
    assert sent == [[True, False]]


def test_hooks_leave_no_references() -> None:
    rows = leaves(1)
    outgoing = RowGradientHooks(rows, lambda: None)
    rows[0].sum().backward()
    outgoing.finish()
    gone = weakref.ref(rows[0])
    gc.disable()
    try:
        del rows, outgoing
        assert gone() is None
    finally:
        gc.enable()
