"""Training steps of one rank as a CUDA graph: the host copies batches in and results out, and the device never waits.

A graph has fixed shapes. Batches have the same number of samples; the numbers of unique rows and of entries of lists
vary, so they are padded to sizes that only grow, and a batch that does not fit makes a new, larger graph. Padding is
exact: no sample refers to a padded row, and padded entries belong to bags that are dropped.
"""

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.data.read.masked_labels import without_unknown
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.observe.trace import Trace
from persia_cli.store.wire_rows import row_bytes
from persia_cli.training.graphs.blocks import BlockLayout, Field, decode, encode_into, padded, step_blocks
from persia_cli.training.graphs.device_queue import DeviceLanes, DeviceQueue, Slot, copies_of
from persia_cli.training.graphs.update import NUMBERS, GraphUpdate
from persia_cli.training.inputs import GroupShape, Samples
from persia_cli.training.pooling import DevicePooling, DeviceRows, Staged, StagedRows
from persia_cli.training.step import ALONE, DenseStep, Scored, StepResult
from persia_cli.wire.messages import GroupRows

SLOTS = 4
"""Steps between `submit` and the end of `finish`."""
CLOSE = 1e-2
"""Largest difference between a graph and the step without one, relative to the greatest magnitude."""
SPARE_BAGS = 256
"""Bags of padded entries: a GPU adds up the entries of one bag one after another."""
WAIT_S = 0.2
NEUTRAL = (0.0, 0.0, 1.0)
"""Numbers of `GraphUpdate.run` that change no weights: those of RATE, STEP_SIZE and ROOT."""

Arrays = dict[str, NDArray[Any]]
Pair = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class SlotViews:
    """A slot and its NumPy views, cached: making torch views in each step would contend for the GIL."""

    slot: Slot
    given: Arrays
    result: Arrays


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step between `submit` and `finish`; it keeps the batch, since the cause of an error is found in it."""

    step: int
    samples: Samples
    groups: Sequence[GroupRows]
    views: SlotViews


class CapturedGraph:
    """One graph with its blocks and slots."""

    def __init__(self, device: DeviceQueue, inputs: BlockLayout, outputs: BlockLayout) -> None:
        self.inputs, self.outputs = inputs, outputs
        blocks = [torch.zeros(layout.nbytes, dtype=torch.uint8, device=device.device) for layout in (inputs, outputs)]
        self.given, self.result = inputs.tensors(blocks[0]), outputs.tensors(blocks[1])
        slots = [device.slot(*blocks) for _ in range(SLOTS)]
        self.slots = [SlotViews(slot, inputs.arrays(slot.given), outputs.arrays(slot.result)) for slot in slots]
        self.free: queue.SimpleQueue[SlotViews] = queue.SimpleQueue()
        for views in self.slots:
            self.free.put(views)
        self.graph: object = None

    def next_free(self, check: Callable[[], None]) -> SlotViews:
        """Wait for a free slot; `check` raises an error that prevents one."""
        while True:
            try:
                return self.free.get(timeout=WAIT_S)
            except queue.Empty:
                check()


class GroupInputs:
    """The ids of one feature group as arrays of a graph's input block, whose padded sizes only grow."""

    def __init__(self, number: int, pooling: DevicePooling) -> None:
        self.rows = 0
        """Padded number of unique rows."""
        self.sizes: dict[str, int] = {}
        """Padded size of each array of entries, by its name in the block."""
        self._pooling = pooling
        self._ids, self._entries, self._offsets = f"ids {number}", f"entries {number}", f"offsets {number}"
        self._sequences = [
            (f"{self._entries} of {name}", f"{self._offsets} of {name}") for _, name, _ in pooling.sequences
        ]

    def arrays(self, group: GroupRows) -> Arrays:
        """Return the arrays of a batch by name; raises ValueError for entries without a row."""
        count = _count(group)
        self.rows = max(self.rows, padded(count))
        bags = self._pooling.bags(group, count)
        if bags.offsets is None and self._entries not in self.sizes:
            arrays: Arrays = {self._ids: bags.entries}
        else:
            # A batch among those with lists may by chance have one entry in each bag.
            offsets = np.arange(len(bags.entries) + 1) if bags.offsets is None else bags.offsets
            self._grow(self._entries, len(bags.entries))
            spare = np.linspace(len(bags.entries), self.sizes[self._entries], SPARE_BAGS + 1).astype(np.int64)
            arrays = {self._entries: bags.entries, self._offsets: np.concatenate([offsets, spare[1:]])}
        for names, sequence in zip(self._sequences, bags.sequences, strict=True):
            self._grow(names[0], len(sequence[0]))
            arrays |= zip(names, sequence, strict=True)
        return arrays

    def _grow(self, name: str, count: int) -> None:
        self.sizes[name] = max(self.sizes.get(name, 0), padded(count))

    def fill(self, given: Arrays) -> None:
        """Fill the entries of a new slot with different rows: a GPU adds up the gradients of one row one by one."""
        for name in self.sizes:
            given[name][...] = np.arange(len(given[name])) % self.rows

    def device_rows(self, leaf: torch.Tensor, given: dict[str, torch.Tensor]) -> DeviceRows:
        """Return the rows that a graph pools; `leaf` are the unique ones."""
        sequences = [(given[entries], given[offsets]) for entries, offsets in self._sequences]
        if self._entries not in given:
            return DeviceRows(self._pooling, leaf, given[self._ids], None, sequences)
        return DeviceRows(self._pooling, leaf, given[self._entries], given[self._offsets], sequences)


class GraphedStep:
    """Runs the steps of a rank that trains alone as a CUDA graph. One thread calls `submit`, another `finish`."""

    def __init__(
        self,
        step: DenseStep,
        groups: Sequence[GroupShape],
        device: DeviceQueue,
        size: int,
        empty: Empty = np.empty,
        trace: Trace | None = None,
    ) -> None:
        """Run the steps of `step`, of `size` samples each; `empty` allocates encoded gradients of rows."""
        self._trace = trace or Trace()
        self._lanes = DeviceLanes(self._trace)
        self._step, self._groups, self._device, self._size, self._empty = step, groups, device, size, empty
        self._inputs: list[GroupInputs] = []
        for number, pooling in enumerate(step.staging.poolings):
            assert isinstance(pooling, DevicePooling)
            self._inputs.append(GroupInputs(number, pooling))
        self._trained = [number for number, group in enumerate(groups) if not group.is_frozen]
        self._update = GraphUpdate(step.optimizer)
        self._weights = [weight for weight in step.module.parameters() if weight.requires_grad]
        self._weight_axes = 0
        """Number of axes of the weights of samples: 0 without weights, 2 with one for each label."""
        self._captured: CapturedGraph | None = None
        self._shapes: tuple[list[int], dict[str, tuple[int, ...]]] = [], {}
        """The padded shapes of its arrays: the unique rows of each group, and the others by name."""

    def fits(self, samples: Samples) -> bool:
        """Return True if the batch has the size of the graph."""
        return len(samples.labels) == self._size

    def submit(
        self, step: int, samples: Samples, groups: Sequence[GroupRows], lr: float | None, check: Callable[[], None]
    ) -> PendingStep:
        """Enqueue a step with this learning rate of the dense weights, None to update none; waits only for a free slot.

        `check` is called during the wait, and raises the error of the thread that finishes steps.
        """
        arrays = self._sample_arrays(samples)
        for inputs, group in zip(self._inputs, groups, strict=True):
            arrays |= inputs.arrays(group)
        captured = self._captured_for(arrays, check)
        views = captured.next_free(check)
        arrays["numbers"] = np.array(NEUTRAL if lr is None else self._update.numbers(lr), np.float32)
        # Entries beyond the copied ones are of an earlier batch: rows that exist.
        pairs = [(views.given[name], np.ascontiguousarray(array)) for name, array in arrays.items()]
        for number, group in enumerate(groups):
            pairs += zip(_parts(views.given[f"rows {number}"], group.rows), group.rows, strict=True)
        bytes_in, bytes_out = captured.inputs.nbytes, captured.outputs.nbytes
        if groups:
            bytes_in = captured.inputs.nbytes_with(_count(groups[-1]))
        if self._trained:
            bytes_out = captured.outputs.nbytes_with(_count(groups[self._trained[-1]]))
        seed = partial(self._step.seed_of, step)
        self._device.submit(views.slot, captured.graph, copies_of(pairs), bytes_in, bytes_out, seed)
        return PendingStep(step, samples, groups, views)

    def finish(self, pending: PendingStep) -> tuple[Scored, list[NDArray[np.uint8]]]:
        """Wait for a step; return its scores and the gradients of rows in their wire format.

        Raises UserError if the loss is not finite; the weights have changed then.
        """
        assert self._captured is not None
        result = pending.views.result
        scored = Scored(np.empty_like(result["logits"]), np.empty_like(result["loss"]))
        pairs: list[Pair] = [(scored.logits, result["logits"]), (scored.loss_sum, result["loss"])]
        gradients = []
        for number, (group, shape) in enumerate(zip(pending.groups, self._groups, strict=True)):
            count = 0 if shape.is_frozen else _count(group)
            gradients.append(self._empty((count, row_bytes(shape.dim, shape.wire)), np.uint8))
            if count:
                pairs.append((gradients[-1], result[f"gradients {number}"][:count]))
        self._device.fetch(pending.views.slot, copies_of(pairs))
        if self._trace.covers(pending.step):
            self._lanes.add(pending.step, self._device.moments(pending.views.slot))
        if not np.isfinite(scored.loss_sum).all():
            leaves = [decode_on_host(group, shape) for group, shape in zip(pending.groups, self._groups, strict=True)]
            finite = result["finite"].tolist()
            self._step.require_finite(scored, f"step {pending.step}", pending.samples, leaves, finite)
        self._captured.free.put(pending.views)
        return scored, gradients

    def state(self) -> list[torch.Tensor]:
        """Return copies of all that a step changes on the device."""
        return [tensor.detach().clone() for tensor in self._changing()]

    def difference_from_eager(
        self,
        step: int,
        samples: Samples,
        groups: Sequence[GroupRows],
        before: Sequence[torch.Tensor],
        plain: StepResult,
    ) -> str:
        """Repeat by a graph the step that gave `plain`; return why that cannot be or how it differs, or "".

        `before` is `state` before that step. The call leaves the state unchanged.
        """
        if not self._update.is_even:
            return "the optimizer has made more steps with weights of another model, so the number of steps differs"
        after = self.state()
        try:
            # Further state is that of an optimizer that had made no step.
            self._set_state([*before, *map(torch.zeros_like, self._changing()[len(before) :])])
            pending = self.submit(step, samples, groups, None, lambda: None)
            scored, gradients = self.finish(pending)
        finally:
            self._set_state(after)
        pairs: dict[str, Pair] = {
            "logits": (scored.logits, plain.logits),
            "losses": (scored.loss_sum, plain.loss_sum),
        }
        for number, (encoded, shape) in enumerate(zip(gradients, self._groups, strict=True)):
            if shape.is_frozen:
                continue
            decoded = decode(torch.from_numpy(encoded), shape.dim, shape.wire).numpy()
            pairs[f"gradients of rows of group {number}"] = decoded, plain.gradients[number]
        differences = {name: _relative_difference(*pair) for name, pair in pairs.items()}
        # NaN is neither greater nor less.
        return "; ".join(f"the {name} differ by {by:.2g}" for name, by in differences.items() if not by <= CLOSE)

    def release(self) -> None:
        """Free the memory of the graph; no step may be in pending."""
        self._captured = None

    @torch.no_grad()
    def _set_state(self, values: Sequence[torch.Tensor]) -> None:
        for tensor, value in zip(self._changing(), values, strict=True):
            tensor.copy_(value)

    def _changing(self) -> list[torch.Tensor]:
        module = self._step.module
        return [*module.parameters(), *module.buffers(), *self._update.state]

    def _sample_arrays(self, samples: Samples) -> Arrays:
        labels, weights = without_unknown(samples.labels, samples.weights)
        factors = self._step.settings.objective.factors(samples.weight_totals)
        arrays: Arrays = {"factors": np.array(factors, np.float32), "dense": samples.dense, "labels": labels}
        self._weight_axes = max(self._weight_axes, 0 if weights is None else weights.ndim)
        if self._weight_axes:
            given = np.ones(len(labels), np.float32) if weights is None else weights
            shaped = given[:, None] if given.ndim < self._weight_axes else given
            arrays["weights"] = np.broadcast_to(shaped, labels.shape) if self._weight_axes == 2 else shaped
        return arrays

    def _captured_for(self, arrays: Arrays, check: Callable[[], None]) -> CapturedGraph:
        """Return the graph, captured anew if the batch does not fit the present one."""
        rows = [inputs.rows for inputs in self._inputs]
        sizes = {name: size for inputs in self._inputs for name, size in inputs.sizes.items()}
        shapes = {name: (sizes.get(name, len(array)), *array.shape[1:]) for name, array in arrays.items()}
        if self._captured is not None:
            if self._shapes == (rows, shapes):
                return self._captured
            for _ in range(SLOTS):  # all steps have finished once all slots are free
                self._captured.next_free(check)
            self._captured = None  # frees the memory of its graph
        self._shapes = rows, shapes
        fields = [Field(name, arrays[name].dtype, shape) for name, shape in shapes.items()]
        fields += [Field("numbers", np.dtype(np.float32), (NUMBERS,))]
        layouts = step_blocks(fields, rows, self._groups, self._size, arrays["labels"].shape[1])
        captured = CapturedGraph(self._device, *layouts)
        for views in captured.slots:
            for inputs in self._inputs:
                inputs.fill(views.given)
        self._capture(captured)
        self._captured = captured
        return captured

    def _capture(self, captured: CapturedGraph) -> None:
        before = self.state()
        try:
            captured.graph = self._device.capture(lambda: self._body(captured), lambda: self._body(captured))
        finally:
            self._set_state(before)

    def _body(self, captured: CapturedGraph) -> None:
        """Run a step on the blocks of a graph, by operations of the device alone."""
        given, result, step = captured.given, captured.result, self._step
        for weight in self._weights:
            weight.grad = None
        result["finite"].copy_(step.finiteness())
        leaves = [
            decode(given[f"rows {number}"], shape.dim, shape.wire).requires_grad_(not shape.is_frozen)
            for number, shape in enumerate(self._groups)
        ]
        rows: list[StagedRows] = [
            inputs.device_rows(leaf, given) for inputs, leaf in zip(self._inputs, leaves, strict=True)
        ]
        step.module.train()
        staged = Staged(given["dense"], given["labels"], given.get("weights"), None, None, rows)
        logits, weighted = step.forward(step.module, staged, ALONE)
        torch.dot(weighted.sum(0), given["factors"]).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            result["logits"].copy_(logits)
            result["loss"].copy_(weighted.double().sum(0))
            for number, (leaf, shape) in enumerate(zip(leaves, self._groups, strict=True)):
                if not shape.is_frozen:
                    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                    encode_into(gradient, shape.wire, result[f"gradients {number}"])
        if step.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._weights, step.settings.clip_norm)
        self._update.run(given["numbers"])


def _count(group: GroupRows) -> int:
    """Return the number of unique rows of a batch."""
    return sum(map(len, group.rows))


def _parts(array: NDArray[np.uint8], blocks: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Return the consecutive parts of an array that have the lengths of `blocks`."""
    stops = list(accumulate(map(len, blocks)))
    return [array[stop - len(block) : stop] for stop, block in zip(stops, blocks, strict=True)]


def decode_on_host(group: GroupRows, shape: GroupShape) -> torch.Tensor:
    """Return the unique rows of a batch, float32 [U, dim], in the host's memory."""
    parts = [torch.tensor(block) for block in group.rows]
    return torch.cat([decode(part, shape.dim, shape.wire) for part in parts] or [torch.empty(0, shape.dim)])


def _relative_difference(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the greatest difference of two arrays, relative to the greatest magnitude of the second."""
    return float(np.abs(ours - theirs).max(initial=0.0) / max(float(np.abs(theirs).max(initial=0.0)), 1e-30))
