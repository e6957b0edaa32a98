"""Gradients of the rows on their way out: sent from within backward, before the ranks have added up dense gradients."""

from collections.abc import Callable, Sequence

import torch


class OutgoingRows:
    """Calls `send` once, with every leaf's gradient complete: in backward if each leaf has one, else in `finish`."""

    def __init__(self, leaves: Sequence[torch.Tensor], send: Callable[[], None]) -> None:
        self._send = send
        self._awaited = len(leaves)
        # Taken off again in `finish`: a leaf that holds its hook would keep itself alive in a circle.
        self._hooks = [
            leaf.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for leaf in leaves
        ]

    def _on_gradient(self, leaf: torch.Tensor) -> None:
        self._awaited -= 1
        if self._awaited == 0:
            self._send()

    def finish(self) -> None:
        """Backward has returned; a leaf that the loss does not depend on has got no gradient, and will not."""
        for hook in self._hooks:
            hook.remove()
        if self._awaited or not self._hooks:
            self._awaited = 0
            self._send()
