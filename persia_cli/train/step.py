"""One step of one rank: samples and rows in, embedding gradients out, dense weights moved."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.errors import ConfigError, PersiaError
from persia_cli.observe.trace import Trace
from persia_cli.train.distributed import World
from persia_cli.train.inputs import GroupRows, GroupShape, Samples
from persia_cli.train.loss import batch_loss, weighted_losses
from persia_cli.train.outgoing import OutgoingRows
from persia_cli.train.pooling import GroupPooling, model_batch


@dataclass(frozen=True, slots=True)
class Scored:
    """What the network said of a rank's n samples.

    `logits` float32 [n, T]; `loss_sum` float64 [T], the sum over samples of w_i l_it.
    """

    logits: NDArray[np.float32]
    loss_sum: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepResult(Scored):
    """Beside the scores, one gradient float32 [U, dim] per group: of the global batch's loss, summed, not averaged."""

    gradients: list[NDArray[np.float32]]


TRAINING = "training"
"""The thread of a trace that steps are trained in."""


class DenseStep:
    """The dense network of one rank and its optimizer; used by one thread."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[GroupShape],
        world: World,
        dense: int,
        seed: int,
        trace: Trace | None = None,
    ) -> None:
        """Take over `module`, which reads `dense` numbers beside `groups`, and the optimizer of its parameters.

        Every rank of `world` does so at once and starts with rank 0's weights. `seed` is the run's; what a network
        draws in a step (dropout) follows from seed, step and rank. Raises ConfigError for a module that several ranks
        cannot train.
        """
        self.module, self.optimizer, self.world = module, optimizer, world
        self._poolings = [GroupPooling(group) for group in groups]
        self._seed = seed
        self._trace = trace or Trace()
        if world.size > 1:
            self._rehearse(module, dense)
        self._network = world.wrap(module)
        if world.size > 1:
            self._rehearse(self._network, dense)

    def train(
        self,
        step: int,
        samples: Samples,
        groups: Sequence[GroupRows],
        send: Callable[[list[NDArray[np.float32]]], None] = lambda gradients: None,
    ) -> StepResult:
        """Run forward and backward on this rank's samples (possibly none) of global step `step`.

        `send` gets the gradients of the rows as soon as backward has all of them. Returns once dense gradients are
        summed over ranks; `update` then moves the dense weights. Raises PersiaError if the loss is not finite,
        WireError if a rank is gone.
        """
        span = partial(self._trace.span, TRAINING, what=step)
        self.optimizer.zero_grad()
        self._network.train()
        with span("decode rows"):
            leaves = [pooling.leaf(group) for pooling, group in zip(self._poolings, groups, strict=True)]
        for leaf in leaves:
            leaf.requires_grad_()
        with self._drawing_for(step), self.world.watched(f"in the forward pass of step {step}"), span("forward"):
            logits, weighted = self._forward(self._network, samples, groups, leaves)
        scored = _scored(logits, weighted)
        self._require_finite(scored, f"step {step}", samples, leaves)
        gradients: list[NDArray[np.float32]] = []

        def send_rows() -> None:
            gradients.extend(map(_gradient, leaves))
            send(gradients)
            # The rows are the last that backward reaches, so what is left of it is waiting for the other ranks.
            if self.world.size > 1:
                self._trace.begin("all-reduce", step)

        outgoing = OutgoingRows(leaves, send_rows)
        with self.world.watched(f"adding up the dense gradients of step {step}"), span("backward"):
            batch_loss(weighted, samples.weight_total).backward()  # type: ignore[no-untyped-call]
            outgoing.finish()
            self._trace.end("all-reduce", step, lane=TRAINING)
        return StepResult(scored.logits, scored.loss_sum, gradients)

    def update(self) -> None:
        """Move the dense weights by the gradients of the last `train`."""
        self.optimizer.step()

    def evaluate(self, step: int, samples: Samples, groups: Sequence[GroupRows]) -> Scored:
        """Score this rank's samples of evaluation step `step`; nothing changes. Raises PersiaError as `train` does."""
        self.module.eval()
        leaves = [pooling.leaf(group) for pooling, group in zip(self._poolings, groups, strict=True)]
        with torch.no_grad():
            logits, weighted = self._forward(self.module, samples, groups, leaves)
        scored = _scored(logits, weighted)
        self._require_finite(scored, f"evaluation step {step}", samples, leaves)
        return scored

    def _forward(
        self, network: nn.Module, samples: Samples, groups: Sequence[GroupRows], leaves: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and weighted losses, both float32 [n, T]."""
        # torch.tensor copies: the arrays may be read-only views of a message.
        batch = model_batch(self._poolings, leaves, groups, torch.tensor(samples.dense))
        weights = None if samples.weights is None else torch.tensor(samples.weights)
        logits: torch.Tensor = network(batch)
        if logits.shape != samples.labels.shape:
            raise ConfigError(
                f"the model must return logits [samples, tasks] = {list(samples.labels.shape)}, "
                f"not {list(logits.shape)}"
            )
        return logits, weighted_losses(logits, torch.tensor(samples.labels), weights)

    @contextmanager
    def _drawing_for(self, step: int) -> Iterator[None]:
        """Make torch's random numbers a function of (seed, step, rank), so that a resumed run draws the same."""
        generator = torch.default_generator
        before = generator.get_state()
        drawn = np.random.SeedSequence((self._seed, step, self.world.rank)).generate_state(1, np.uint64)
        generator.manual_seed(int(drawn[0] >> np.uint64(1)))
        try:
            yield
        finally:
            generator.set_state(before)

    def _rehearse(self, network: nn.Module, dense: int) -> None:
        """Run forward and backward on no samples; raises ConfigError for parameters that get no gradient.

        DistributedDataParallel orders its buckets anew after the first backward, and their order decides how three or
        more ranks round their sums: after a rehearsal every real step has the last order, also the first of a resumed
        run. It cannot do without a gradient of each parameter.
        """
        none = GroupRows([], np.empty(0, np.int32), np.zeros(1, np.uint32))
        leaves = [pooling.leaf(none) for pooling in self._poolings]
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        network.train()
        with self._drawing_for(0), self.world.watched("rehearsing a step"):
            batch = model_batch(self._poolings, leaves, [none] * len(leaves), torch.zeros(0, dense))
            network(batch).sum().backward()
        idle = [name for name, weight in self.module.named_parameters() if weight.requires_grad and weight.grad is None]
        if idle:
            raise ConfigError(
                f"these parameters of the model take no part in its logits: {', '.join(idle)}; with several NN workers "
                "every parameter must, so remove them or set their requires_grad to False"
            )
        self.optimizer.zero_grad()
        for buffer, before in zip(self.module.buffers(), buffers, strict=True):
            buffer.copy_(before)

    def _require_finite(self, scored: Scored, where: str, samples: Samples, leaves: Sequence[torch.Tensor]) -> None:
        if np.isfinite(scored.loss_sum).all():
            return
        bad = np.flatnonzero(~np.isfinite(samples.dense).all(axis=0))
        if bad.size:
            cause = (
                f"dense feature number {bad[0]} (from 0) has NaN or infinite values; clean the data or set dataset.fill"
            )
        elif not all(bool(leaf.isfinite().all()) for leaf in leaves):
            cause = "embedding rows have become NaN or infinite; lower optimizer.embedding.lr"
        elif not all(bool(weight.isfinite().all()) for weight in self.module.parameters()):
            cause = "dense weights have become NaN or infinite; lower optimizer.dense.lr"
        else:
            cause = "the network overflows on finite inputs; lower the learning rates or scale dense features down"
        raise PersiaError(f"the loss of {where} on nn-worker-{self.world.rank} is not finite: {cause}")


def _scored(logits: torch.Tensor, weighted: torch.Tensor) -> Scored:
    return Scored(logits.detach().numpy(), weighted.detach().double().sum(0).numpy())


def _gradient(leaf: torch.Tensor) -> NDArray[np.float32]:
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return np.ascontiguousarray(gradient.detach().numpy())
