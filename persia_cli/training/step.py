"""One step of one rank: from samples and rows to gradients of rows and updated dense weights."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.errors import ConfigError, UserError
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.outputs import checked_output
from persia_cli.model.ragged import Tokens
from persia_cli.model.two_sides import Sides, TwoSides
from persia_cli.model.uncertainty import log_variances_of
from persia_cli.observe.trace import Trace
from persia_cli.training.device import Precision, autocast, drawing_from
from persia_cli.training.distributed import World
from persia_cli.training.inputs import WHOLE, GroupShape, Samples, StepParts
from persia_cli.training.loss import Objective, remote_samples, softmax_of_step, with_auxiliary
from persia_cli.training.next_item import next_item_losses
from persia_cli.training.pooling import Staged, Staging, model_batch
from persia_cli.wire.messages import GroupRows


@dataclass(frozen=True, slots=True)
class StepSettings:
    """The options of computing a step."""

    objective: Objective
    precision: Precision = "float32"
    clip_norm: float | None = None
    """Maximum Euclidean norm of the gradient of all dense weights together."""
    by_kernels: bool = True
    """True to pool by kernels instead of torch's operations if the network is on the CPU."""
    empty: Empty = np.empty
    """Allocator of the gradients of rows, in memory that is cheap to send."""
    parts: StepParts = WHOLE
    """The number of a rank's samples that the network gets at once; several ranks have equally many parts."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The predictions of the network for a rank's n samples.

    `logits` float32 [n, T]; `loss_sum` float64 [T], the sum over samples of w_it l_it, auxiliary losses included. Of a
    loss of next elements it is over positions, and `position_weight` the sum of their weights; else None.
    """

    logits: NDArray[np.float32]
    loss_sum: NDArray[np.float64]
    position_weight: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class StepResult(Scored):
    """The scores, and one gradient float32 [U, dim] per group, [0, dim] if its rows are frozen.

    Gradients are of the global batch's loss, summed, not averaged."""

    gradients: list[NDArray[np.float32]]


ALONE = World()
"""The place of a rank that computes alone."""

Output = tuple[torch.Tensor, torch.Tensor]
"""Logits and weighted losses of some samples, both float32 [n, T]."""

TRAINING = "training"
"""Name of the thread that trains steps, in traces."""


class DenseStep:
    """The dense network of one rank and its optimizer, if it trains; used by one thread."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        groups: Sequence[GroupShape],
        world: World,
        dense: int,
        seed: int,
        settings: StepSettings,
        trace: Trace | None = None,
    ) -> None:
        """Take over `module`, which reads `dense` numbers and `groups`, and the optimizer of its parameters.

        `module` is on the device of `world`. Without an optimizer it can only `evaluate`.

        All ranks of `world` call this together and, if they train, start with rank 0's weights. `seed` is the run's;
        random numbers of a network in a step (dropout) depend on seed, step and rank. Raise ConfigError for a module
        that several ranks cannot train.
        """
        self.module, self.world = module, world
        self._optimizer = optimizer
        self.settings = settings
        self._frozen = [group.is_frozen for group in groups]
        self.staging = Staging(groups, world.device, settings.by_kernels, settings.empty, settings.objective.next_item)
        self._seed = seed
        self._trace = trace or Trace()
        self._dense = dense
        self._network = module
        if isinstance(module, TwoSides):
            module.gives_vectors = settings.objective.in_batch is not None
        if world.size > 1 and optimizer is not None:
            self.rehearse()
            self._network = world.wrap(module)
            self.rehearse()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the dense weights."""
        assert self._optimizer is not None, "a step without an optimizer can only evaluate"
        return self._optimizer

    def train(
        self,
        step: int,
        samples: Samples,
        groups: Sequence[GroupRows],
        send: Callable[[list[NDArray[np.float32]]], None] = lambda gradients: None,
    ) -> StepResult:
        """Run forward and backward on this rank's samples (possibly none) of global step `step`.

        The parts of the step (`StepSettings.parts`) follow each other, and their gradients add up. Call `send` with
        the gradients of the rows as soon as the last backward has all of them. Return once dense gradients are summed
        over ranks; `update` then changes the dense weights. Raise UserError if the loss is not finite, WireError if a
        rank is lost.
        """
        span, seed = partial(self._trace.span, TRAINING, what=step), self.seed_of(step)
        self.optimizer.zero_grad()
        self._network.train()
        with span("decode rows"):
            # Ranks have equally many parts, since they communicate in each; a single rank needs no empty ones.
            cuts = self.settings.parts.filled if self.world.size == 1 else self.settings.parts.cuts
            parts = self.staging.stage_parts(samples, groups, cuts(len(samples.labels)), seed)
        leaves = parts[0].leaves
        trained = [leaf for leaf, frozen in zip(leaves, self._frozen, strict=True) if not frozen]
        for leaf in trained:
            leaf.requires_grad_()
        with (
            drawing_from(seed, self.world.device),
            self.world.watched(f"in the forward pass of step {step}"),
        ):
            outputs = [self._accumulate(part, samples.weight_totals, span) for part in parts[:-1]]
            with span("forward"):
                logits, weighted = self.forward(self._network, parts[-1], self.world)
        # On a GPU, this waits for the forward pass.
        with span("fetch scores"):
            scored = _scored([*outputs, (logits.detach(), weighted.detach())], parts[0])
        self.require_finite(scored, f"step {step}", samples, leaves)
        gradients: list[NDArray[np.float32]] = []

        def send_rows() -> None:
            with span("fetch gradients"):
                gradients.extend(self._row_gradients(leaves))
            send(gradients)
            # Backward reaches the rows last, so the rest of it only waits for the other ranks.
            if self.world.size > 1:
                self._trace.begin("all-reduce", step)

        outgoing = RowGradientHooks(trained, send_rows)
        with self.world.watched(f"adding up the dense gradients of step {step}"), span("backward"):
            self._backward(weighted, samples.weight_totals)
            outgoing.finish()
            self._trace.end("all-reduce", step, lane=TRAINING)
        return StepResult(scored.logits, scored.loss_sum, gradients, position_weight=scored.position_weight)

    def _accumulate(
        self, part: Staged, weight_totals: Sequence[float], span: Callable[[str], AbstractContextManager[None]]
    ) -> Output:
        """Run forward and backward on a part before the last, on this rank alone; return the result of `_forward`."""
        with self.world.no_sync(self._network):
            with span("forward"):
                logits, weighted = self.forward(self._network, part, self.world)
            with span("backward"):
                self._backward(weighted, weight_totals)
        return logits.detach(), weighted.detach()

    def _backward(self, weighted: torch.Tensor, weight_totals: Sequence[float]) -> None:
        """Add the gradients of a part's share of the loss."""
        self.settings.objective.part(weighted, weight_totals).backward()  # type: ignore[no-untyped-call]

    def _row_gradients(self, leaves: Sequence[torch.Tensor]) -> list[NDArray[np.float32]]:
        """Return the gradients of the rows in the host's memory; none of frozen rows."""
        gradients = [
            leaf[:0] if frozen else torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for leaf, frozen in zip(leaves, self._frozen, strict=True)
        ]
        return self.staging.fetch(gradients)

    def update(self) -> None:
        """Update the dense weights with the gradients of the last `train`."""
        if self.settings.clip_norm is not None:
            weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
            nn.utils.clip_grad_norm_(weights, self.settings.clip_norm)
        self.optimizer.step()

    def evaluate(self, step: int, samples: Samples, groups: Sequence[GroupRows]) -> Scored:
        """Score this rank's samples of evaluation step `step`; nothing changes. Raises UserError as `train` does."""
        self.module.eval()
        parts = self.staging.stage_parts(samples, groups, self.settings.parts.filled(len(samples.labels)))
        with torch.no_grad():
            scored = _scored([self.forward(self.module, part, ALONE) for part in parts], parts[0])
        self.require_finite(scored, f"evaluation step {step}", samples, parts[0].leaves)
        return scored

    def forward(self, network: nn.Module, staged: Staged, world: World) -> Output:
        """Return logits and weighted losses, with auxiliary ones if the network has some, both float32 [n, T].

        Losses of several samples are of those of all ranks of `world`, which call this together. In evaluations each
        rank has a separate world: ranks need not reach the end of one together.
        """
        objective = self.settings.objective
        output = self._output(network, staged)
        if isinstance(output, Sides):
            return softmax_of_step(self.module, output, staged, world)
        if staged.next_items is not None and objective.next_item is not None:
            assert isinstance(self.module, TwoSides)
            leaf = staged.leaves[staged.next_items.group]
            return next_item_losses(self.module, output, staged.next_items, leaf, objective.next_item.temperature)
        logits, auxiliary = checked_output(output, staged.labels.shape, "the model")
        logits = logits.float()
        others = remote_samples(logits, staged, world) if objective.needs_others and world.size > 1 else None
        uncertainty = log_variances_of(self.module)
        weighted = objective.weighted(logits, staged.labels, staged.weights, uncertainty, others, staged.queries)
        return logits, with_auxiliary(weighted, auxiliary, staged.weights)

    def _output(self, network: nn.Module, staged: Staged) -> Any:
        """Return the output of a network of staged samples: logits, or what another loss needs."""
        if staged.next_items is None:
            batch: ModelBatch | Tokens = model_batch(self.staging.poolings, staged.rows, staged.dense)
        else:
            batch = staged.next_items.sequences.read(staged.leaves[staged.next_items.group])
        with autocast(self.settings.precision, self.world.device):
            return network(batch)

    def seed_of(self, step: int) -> int:
        """Return the seed of torch's random numbers in a step of this rank, so that a resumed run draws the same."""
        drawn = np.random.SeedSequence((self._seed, step, self.world.rank)).generate_state(1, np.uint64)
        return int(drawn[0] >> np.uint64(1))

    def rehearse(self) -> None:
        """Run forward and backward on no samples; raise ConfigError for parameters that get no gradient."""
        # DistributedDataParallel reorders its buckets after the first backward, and their order decides how three or
        # more ranks round their sums. After a rehearsal, every real step has the final order, even the first one of a
        # resumed run. It needs a gradient of every parameter.
        staged = self.staging.none(self._dense)
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        self._network.train()
        with drawing_from(self.seed_of(0), self.world.device), self.world.watched("rehearsing a step"):
            output = self._output(self._network, staged)
            parts = output if isinstance(output, tuple) else [output]
            torch.stack([part.float().sum() for part in parts]).sum().backward()  # type: ignore[no-untyped-call]
        idle = [name for name, weight in self.module.named_parameters() if weight.requires_grad and weight.grad is None]
        if idle:
            raise ConfigError(
                f"the logits do not depend on these parameters of the model: {', '.join(idle)}; with several NN workers"
                " they must depend on all of them, so remove them or set their requires_grad to False"
            )
        self.optimizer.zero_grad()
        for buffer, before in zip(self.module.buffers(), buffers, strict=True):
            buffer.copy_(before)

    def require_finite(
        self,
        scored: Scored,
        where: str,
        samples: Samples,
        leaves: Sequence[torch.Tensor],
        finite: Sequence[bool] | None = None,
    ) -> None:
        """Raise UserError with the cause if the loss is not finite.

        `finite` is `finiteness` before the step; None if the weights have not changed since.
        """
        if np.isfinite(scored.loss_sum).all():
            return
        weights, variances = self.finiteness().tolist() if finite is None else finite
        bad = np.flatnonzero(~np.isfinite(samples.dense).all(axis=0))
        if bad.size:
            cause = (
                f"dense feature number {bad[0]} (from 0) has NaN or infinite values; clean the data or set dataset.fill"
            )
        elif not all(bool(leaf.isfinite().all()) for leaf in leaves):
            cause = "embedding rows have become NaN or infinite; lower optimizer.embedding.lr"
        elif not weights:
            cause = "dense weights have become NaN or infinite; lower optimizer.dense.lr"
        elif not variances:
            cause = (
                "a variance that train.task_weights=uncertainty learns has become practically 0; lower "
                "optimizer.dense.lr, or leave train.task_weights out"
            )
        elif np.isfinite(scored.logits).all():
            kinds = ", ".join(dict.fromkeys(loss.kind for loss in self.settings.objective.losses))
            cause = (
                f"the outputs, up to {np.abs(scored.logits).max():.3g}, are too far from the labels for the loss "
                f"({kinds}); begin nearer to them (model.output_bias=base_rate), scale the labels down, or lower the "
                "learning rates"
            )
        else:
            cause = "the network overflows on finite inputs; lower the learning rates or scale dense features down"
        raise UserError(f"the loss of {where} on nn-worker-{self.world.rank} is not finite: {cause}")

    @torch.no_grad()
    def finiteness(self) -> torch.Tensor:
        """Return bool [2] on the device: whether all weights are finite, and the factors of learnt variances."""
        greatest = torch._foreach_norm([weight for weight in self.module.parameters() if weight.numel()], float("inf"))
        learnt = log_variances_of(self.module)
        factors = torch.stack(greatest) if learnt is None else torch.exp(-learnt)
        return torch.stack([torch.stack(greatest).isfinite().all(), factors.isfinite().all()])


def _scored(outputs: Sequence[Output], staged: Staged) -> Scored:
    """Return the scores of a step from the logits and weighted losses of its parts; `staged` is any part."""
    logits, weighted = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*outputs, strict=True))
    weight = None if staged.next_items is None else staged.next_items.step_weight
    sums = weighted.detach().double().sum(0).cpu().numpy()
    return Scored(logits.detach().cpu().numpy(), sums, position_weight=weight)


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
