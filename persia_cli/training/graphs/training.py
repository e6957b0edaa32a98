"""Training by graphs: which steps a graph can run, the check of its first one, and the thread that finishes steps."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.config.schema import Run
from persia_cli.config.schema.model import CustomModel
from persia_cli.errors import PersiaError, UserError
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.observe.trace import Trace
from persia_cli.training.distributed import World
from persia_cli.training.graphs.device_queue import CudaQueue, DeviceQueue
from persia_cli.training.graphs.step import GraphedStep, PendingStep
from persia_cli.training.inputs import GroupShape, Samples
from persia_cli.training.loss import Objective
from persia_cli.training.step import TRAINING, DenseStep, Scored, StepResult
from persia_cli.wire.messages import GroupRows

Encoded = list[NDArray[np.uint8]]
Send = Callable[[Encoded], None]
Done = Callable[[Scored], None]

FINISHING = "finishing"
"""Name of the thread that finishes steps, in traces."""
FULL = "the memory of the GPU is full"
WAIT_S = 0.2
CLOSE_S = 5.0
"""Longest wait for the steps in flight at the end; a device that hangs must not prevent the end of the process."""

log = logging.getLogger(__name__)


def reason_against(run: Run, device: torch.device, objective: Objective) -> str:
    """Return why the steps of a rank on this device cannot be a graph, or ""."""
    reasons = {
        "its device is the CPU": device.type == "cpu",
        "a network of your own may decide in Python what a step does (train.graphs=on if it never does)": (
            isinstance(run.model, CustomModel) and run.train.graphs != "on"
        ),
        "several NN workers add up their gradients": run.cluster.nn_workers > 1,
        "train.accumulate divides the steps": run.train.accumulate > 1,
        "the loss pairs samples": objective.needs_others or objective.in_batch is not None,
        "the loss is of sequences, whose lengths differ from step to step": objective.next_item is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class GraphedTraining:
    """The steps that a rank trains by graphs.

    The first whole step runs without a graph. The graph repeats it and must give the same scores and gradients;
    otherwise all steps run without one, which the log reports once. With `required` that is an error.
    """

    def __init__(
        self,
        step: DenseStep,
        groups: Sequence[GroupShape],
        device: DeviceQueue,
        *,
        size: int,
        empty: Empty,
        trace: Trace,
        required: bool,
        fail: Callable[[BaseException], None],
    ) -> None:
        """Train steps of `size` samples; `empty` allocates encoded gradients of rows.

        The thread that finishes steps calls `fail` with its error, since the other may wait for the next batch.
        """
        self._graph = GraphedStep(step, groups, device, size, empty, trace)
        self._required, self._trace, self._fail = required, trace, fail
        self._verified: bool | None = None
        """True if the graph gives the results of the step without one; None before the first whole step."""
        self._pending: queue.SimpleQueue[tuple[PendingStep, Send, Done] | threading.Event | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def train(
        self, step: int, samples: Samples, groups: Sequence[GroupRows], lr: float, send: Send, done: Done
    ) -> bool:
        """Enqueue a step; another thread calls `send` and `done` in the order of steps. Return False if it cannot.

        Raises the error of an earlier step.
        """
        self._check()
        if not self._verified:
            return False
        if not self._graph.fits(samples):
            self.drain()
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish_steps, name=FINISHING, daemon=True)
            self._thread.start()
        try:
            with self._trace.span(TRAINING, "enqueue step", step):
                pending = self._graph.submit(step, samples, groups, lr, self._check)
        except torch.OutOfMemoryError:
            if self._required:
                raise
        else:
            self._pending.put((pending, send, done))
            return True
        self.drain()
        self._reject(FULL)
        return False

    def before(self, samples: Samples) -> list[torch.Tensor] | None:
        """Return the state for `verify_against_eager`, before its step; None if this step does not verify the graph."""
        return self._graph.state() if self._verified is None and self._graph.fits(samples) else None

    def verify_against_eager(
        self, step: int, samples: Samples, groups: Sequence[GroupRows], before: list[torch.Tensor], plain: StepResult
    ) -> None:
        """Repeat the step that gave `plain` by a graph; raise UserError if that fails and graphs are required."""
        try:
            reason = self._graph.difference_from_eager(step, samples, groups, before, plain)
        except PersiaError as error:
            reason = str(error)
        except torch.OutOfMemoryError:
            if self._required:
                raise
            reason = FULL
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
        if reason and self._required:
            raise UserError(f"train.graphs=on: the network cannot train as a CUDA graph: {reason}")
        if reason:
            self._reject(reason)
        else:
            self._verified = True

    def _reject(self, reason: str) -> None:
        self._verified = False
        self._graph.release()
        log.warning("the network trains without a CUDA graph, which is slower: %s", reason)

    def drain(self) -> None:
        """Wait until no step is in flight; raise the error of one that failed."""
        if self._thread is not None:
            drained = threading.Event()
            self._pending.put(drained)
            while not drained.wait(WAIT_S):
                self._check()
        self._check()

    def close(self) -> None:
        """End the thread after the steps in flight; waits for it at most CLOSE_S seconds."""
        if self._thread is not None:
            self._pending.put(None)
            self._thread.join(CLOSE_S)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _finish_steps(self) -> None:
        while (item := self._pending.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif self._failure is None:
                self._finish(*item)

    def _finish(self, pending: PendingStep, send: Send, done: Done) -> None:
        try:
            with self._trace.span(FINISHING, "wait for the device", pending.step):
                scored, gradients = self._graph.finish(pending)
            with self._trace.span(FINISHING, "send gradients", pending.step):
                send(gradients)
            done(scored)
        except BaseException as error:
            self._failure = error
            self._fail(error)


def queue_for(run: Run, world: World, objective: Objective, timed: bool) -> DeviceQueue | None:
    """Return the queue of the rank's device if its steps are to be graphs; raise UserError for `train.graphs=on`.

    A trace needs a queue that is `timed`.
    """
    required = run.train.graphs == "on"
    if run.train.graphs == "off":
        return None
    reason = reason_against(run, world.device, objective)
    if not reason:
        try:
            return CudaQueue(world.device, timed)
        except UserError as error:
            reason = str(error)
    if required:
        raise _refusal(reason)
    if world.device.type != "cpu":
        log.info("the network trains without a CUDA graph, since %s", reason)
    return None


def require_graphs(run: Run, device: torch.device) -> None:
    """Raise UserError if `train.graphs=on` and the steps of ranks on this kind of device cannot be graphs."""
    if run.train.graphs == "on" and (reason := reason_against(run, device, Objective(run.losses))):
        raise _refusal(reason)


def _refusal(reason: str) -> UserError:
    return UserError(f"train.graphs=on: the network cannot train as a CUDA graph, since {reason}")
