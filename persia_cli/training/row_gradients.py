"""The early sending of row gradients, during backward."""

from collections.abc import Callable, Sequence

import torch


class RowGradientHooks:
    """Hooks that send the gradients of rows before the ranks have added up dense gradients.

    They call `send` once all leaves' gradients are complete: in backward, or in `finish` if one has none.
    """

    def __init__(self, leaves: Sequence[torch.Tensor], send: Callable[[], None]) -> None:
        self._send = send
        self._awaited = len(leaves)
        self._sent = False
        # Removed in `finish`: a leaf and its hook would keep each other alive in a reference cycle.
        self._hooks = [
            leaf.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for leaf in leaves
        ]

    def _on_gradient(self, leaf: torch.Tensor) -> None:
        self._awaited -= 1
        if self._awaited == 0:
            self._leave()

    def finish(self) -> None:
        """Send after backward if that has not happened; leaves that the loss does not depend on have no gradient."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._leave()

    def _leave(self) -> None:
        if not self._sent:
            self._sent = True
            self._send()
