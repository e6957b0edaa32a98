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
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.data.read.masked_labels import without_unknown
from persia_cli.kernels.toolchain.cuda_calls import Copies, copies_of
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.observe.trace import Trace
from persia_cli.store.wire_rows import row_bytes
from persia_cli.training.blocks import BlockLayout, Field
from persia_cli.training.dense_update import NUMBERS, ROOT, GraphUpdate
from persia_cli.training.device_lanes import DeviceLanes, Moments
from persia_cli.training.device_pooling import DevicePooling, DeviceRows
from persia_cli.training.device_rows import decode, encode_into
from persia_cli.training.graph_blocks import padded, step_blocks
from persia_cli.training.inputs import GroupShape, Samples
from persia_cli.training.pooling import StagedRows
from persia_cli.training.staging import Staged
from persia_cli.training.step import ALONE, DenseStep, Scored, StepResult
from persia_cli.wire.messages import GroupRows

SLOTS = 4
"""Steps between `submit` and the end of `finish`."""
CLOSE = 1e-2
"""Largest difference between a graph and the step without one, relative to the greatest magnitude."""
SPARE_BAGS = 256
"""Bags of padded entries: a GPU adds up the entries of one bag one after another."""
WAIT_S = 0.2

Arrays = dict[str, NDArray[Any]]
Pair = tuple[NDArray[Any], NDArray[Any]]


class Slot(Protocol):
    """The memory of one step in progress, on the host and on the device."""

    given: NDArray[np.uint8]
    """Pinned memory of the host, which `DeviceQueue.submit` copies to the device."""
    result: NDArray[np.uint8]
    """Pinned memory of the host, valid once a step has ended."""


class DeviceQueue(Protocol):
    """A device that copies and replays graphs in the order of calls, without a wait of the host."""

    device: torch.device

    def capture(self, body: Callable[[], None], warm_up: Callable[[], None]) -> object:
        """Return a graph of the operations of `body`; `warm_up` runs first, on the same stream."""

    def slot(self, given: torch.Tensor, result: torch.Tensor) -> Slot:
        """Return a slot for a graph that reads the block `given` and writes the block `result`, uint8."""

    def submit(
        self, slot: Any, graph: Any, copies: Copies, bytes_in: int, bytes_out: int, seed: Callable[[], int]
    ) -> None:
        """Enqueue a step: the copies, the first `bytes_in` of the slot to the device, the graph, `bytes_out` back.

        A graph that draws random numbers draws those of `seed()`.
        """

    def fetch(self, slot: Any, copies: Copies) -> None:
        """Wait for the end of the slot's step, then make the copies."""

    def moments(self, slot: Any) -> Moments:
        """Return the times of the slot's step, which has ended."""


@dataclass(frozen=True, slots=True)
class Berth:
    """A slot with the arrays in its blocks: torch's views, made anew in each step, would wait for the GIL each."""

    slot: Slot
    given: Arrays
    result: Arrays


@dataclass(frozen=True, slots=True)
class Flight:
    """A step between `submit` and `finish`; it keeps the batch, since the cause of an error is found in it."""

    step: int
    samples: Samples
    groups: Sequence[GroupRows]
    berth: Berth


class Program:
    """One graph with its blocks and slots."""

    def __init__(self, device: DeviceQueue, inputs: BlockLayout, outputs: BlockLayout) -> None:
        self.inputs, self.outputs = inputs, outputs
        blocks = [torch.zeros(layout.nbytes, dtype=torch.uint8, device=device.device) for layout in (inputs, outputs)]
        self.given, self.result = inputs.tensors(blocks[0]), outputs.tensors(blocks[1])
        self.free: queue.SimpleQueue[Berth] = queue.SimpleQueue()
        slots = [device.slot(*blocks) for _ in range(SLOTS)]
        self.berths = [Berth(slot, inputs.arrays(slot.given), outputs.arrays(slot.result)) for slot in slots]
        for berth in self.berths:
            self.free.put(berth)
        self.graph: object = None

    def take(self, check: Callable[[], None]) -> Berth:
        """Wait for a free slot; `check` raises an error that prevents one."""
        while True:
            try:
                return self.free.get(timeout=WAIT_S)
            except queue.Empty:
                check()


class GraphedStep:
    """The steps of a rank that trains alone. `submit` is for one thread, `finish` for another."""

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
        self._poolings: list[DevicePooling] = []
        for pooling in step.staging.poolings:
            assert isinstance(pooling, DevicePooling)
            self._poolings.append(pooling)
        self._update = GraphUpdate(step.optimizer)
        self._weights = [weight for weight in step.module.parameters() if weight.requires_grad]
        self._most: dict[str, int] = {}
        """Padded size of each array whose size varies."""
        self._axes = 0
        """Number of axes of the weights of samples: 0 without weights, 2 with one for each label."""
        self._program: Program | None = None

    def fits(self, samples: Samples) -> bool:
        """Return True if the batch has the size of the graph."""
        return len(samples.labels) == self._size

    def submit(
        self, step: int, samples: Samples, groups: Sequence[GroupRows], lr: float, check: Callable[[], None]
    ) -> Flight:
        """Enqueue a step with this learning rate of the dense weights; waits only for a free slot.

        `check` is called during the wait, and raises the error of the thread that finishes steps.
        """
        return self._submit(step, samples, groups, lambda: self._update.numbers(lr), check)

    def _submit(
        self,
        step: int,
        samples: Samples,
        groups: Sequence[GroupRows],
        numbers: Callable[[], Sequence[float]],
        check: Callable[[], None],
    ) -> Flight:
        arrays = self._arrays(samples, groups)
        program = self._program_for(arrays, check)
        berth = program.take(check)
        arrays["numbers"] = np.array(numbers(), np.float32)
        # Entries beyond the copied ones are of an earlier batch: rows that exist.
        pairs = [(berth.given[name], np.ascontiguousarray(array)) for name, array in arrays.items()]
        for number, group in enumerate(groups):
            pairs += zip(_parts(berth.given[f"rows {number}"], group.rows), group.rows, strict=True)
        counts = [sum(map(len, group.rows)) for group in groups]
        bytes_in, bytes_out = _used(program.inputs, "rows", counts), _used(program.outputs, "gradients", counts)
        seed = partial(self._step.seed_of, step)
        self._device.submit(berth.slot, program.graph, copies_of(pairs), bytes_in, bytes_out, seed)
        return Flight(step, samples, groups, berth)

    def finish(self, flight: Flight) -> tuple[Scored, list[NDArray[np.uint8]]]:
        """Wait for a step; return its scores and the gradients of rows in their wire format.

        Raises UserError if the loss is not finite; the weights have changed then.
        """
        assert self._program is not None
        result = flight.berth.result
        scored = Scored(np.empty_like(result["logits"]), np.empty_like(result["loss"]))
        pairs: list[Pair] = [(scored.logits, result["logits"]), (scored.loss_sum, result["loss"])]
        gradients = []
        for number, (group, shape) in enumerate(zip(flight.groups, self._groups, strict=True)):
            count = 0 if shape.is_frozen else sum(map(len, group.rows))
            gradients.append(self._empty((count, row_bytes(shape.dim, shape.wire)), np.uint8))
            if count:
                pairs.append((gradients[-1], result[f"gradients {number}"][:count]))
        self._device.fetch(flight.berth.slot, copies_of(pairs))
        if self._trace.covers(flight.step):
            self._lanes.add(flight.step, self._device.moments(flight.berth.slot))
        if not np.isfinite(scored.loss_sum).all():
            leaves = [decode_on_host(group, shape) for group, shape in zip(flight.groups, self._groups, strict=True)]
            finite = result["finite"].tolist()
            self._step.require_finite(scored, f"step {flight.step}", flight.samples, leaves, finite)
        self._program.free.put(flight.berth)
        return scored, gradients

    def state(self) -> list[torch.Tensor]:
        """Return copies of all that a step changes on the device."""
        return [each.detach().clone() for each in self._changing()]

    def differs(
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
        changing = self._changing()
        try:
            with torch.no_grad():
                for each, old in zip(changing, before, strict=False):
                    each.copy_(old)
                for each in changing[len(before) :]:
                    each.zero_()  # the state of an optimizer that had made no step
            neutral = [0.0] * NUMBERS
            neutral[ROOT] = 1.0
            flight = self._submit(step, samples, groups, lambda: neutral, lambda: None)
            scored, gradients = self.finish(flight)
        finally:
            with torch.no_grad():
                for each, old in zip(changing, after, strict=True):
                    each.copy_(old)
        pairs: dict[str, Pair] = {
            "logits": (scored.logits, plain.logits),
            "losses": (scored.loss_sum, plain.loss_sum),
        }
        for number, (encoded, shape) in enumerate(zip(gradients, self._groups, strict=True)):
            if shape.is_frozen:
                continue
            decoded = decode(torch.from_numpy(encoded), shape.dim, shape.wire).numpy()
            pairs[f"gradients of rows of group {number}"] = decoded, plain.gradients[number]
        found = _apart(pairs)
        # NaN is neither greater nor less.
        return "; ".join(f"the {name} differ by {apart:.2g}" for name, apart in found.items() if not apart <= CLOSE)

    def release(self) -> None:
        """Free the memory of the graph; no step may be in flight."""
        self._program = None

    def _changing(self) -> list[torch.Tensor]:
        module = self._step.module
        return [*module.parameters(), *module.buffers(), *self._update.state]

    def _arrays(self, samples: Samples, groups: Sequence[GroupRows]) -> Arrays:
        """Return the arrays of a batch but its rows; names of those whose first axis is padded end with "entries"."""
        labels, weights = without_unknown(samples.labels, samples.weights)
        factors = self._step.settings.objective.factors(samples.weight_totals)
        arrays: Arrays = {"factors": np.array(factors, np.float32), "dense": samples.dense, "labels": labels}
        self._axes = max(self._axes, 0 if weights is None else weights.ndim)
        if self._axes:
            given = np.ones(len(labels), np.float32) if weights is None else weights
            each = given[:, None] if given.ndim < self._axes else given
            arrays["weights"] = np.broadcast_to(each, labels.shape) if self._axes == 2 else each
        for number, (pooling, group) in enumerate(zip(self._poolings, groups, strict=True)):
            rows = sum(map(len, group.rows))
            self._pad(f"rows {number}", rows)
            bags = pooling.bags(group, rows)
            if bags.offsets is None and f"{number} entries" not in self._most:
                arrays[f"ids {number}"] = bags.entries
            else:
                # A batch among those with lists may by chance have one entry in each bag.
                offsets = np.arange(len(bags.entries) + 1) if bags.offsets is None else bags.offsets
                padded = self._pad(f"{number} entries", len(bags.entries))
                spare = np.linspace(len(bags.entries), padded, SPARE_BAGS + 1).astype(np.int64)
                arrays[f"{number} entries"] = bags.entries
                arrays[f"{number} offsets"] = np.concatenate([offsets, spare[1:]])
            for position, (entries, offsets) in enumerate(bags.sequences):
                self._pad(f"{number} {position} entries", len(entries))
                arrays |= {f"{number} {position} entries": entries, f"{number} {position} offsets": offsets}
        return arrays

    def _pad(self, name: str, count: int) -> int:
        """Return the padded size of an array of `count`, which only grows."""
        self._most[name] = max(self._most.get(name, 0), padded(count))
        return self._most[name]

    def _program_for(self, arrays: Arrays, check: Callable[[], None]) -> Program:
        """Return the program, made anew if the batch does not fit the present one."""
        fields = [
            Field(name, array.dtype, (self._most.get(name, len(array)), *array.shape[1:]))
            for name, array in arrays.items()
        ]
        fields += [Field("numbers", np.dtype(np.float32), (NUMBERS,))]
        rows = [self._most[f"rows {number}"] for number in range(len(self._groups))]
        inputs, outputs = step_blocks(fields, rows, self._groups, self._size, arrays["labels"].shape[1])
        if self._program is not None:
            if list(self._program.inputs.fields.values()) == list(inputs.fields.values()):
                return self._program
            for _ in range(SLOTS):  # all steps have finished once all slots are free
                self._program.take(check)
            self._program = None  # frees the memory of its graph
        program = Program(self._device, inputs, outputs)
        # Padded entries have different rows, since a GPU adds up the gradients of one row one after another.
        for name, array in ((name, array) for berth in program.berths for name, array in berth.given.items()):
            if name.endswith(" entries"):
                array[...] = np.arange(len(array)) % self._most[f"rows {name.partition(' ')[0]}"]
        self._program = self._built(program)
        return self._program

    def _built(self, program: Program) -> Program:
        kept = self.state()
        try:
            program.graph = self._device.capture(lambda: self._body(program), lambda: self._body(program))
        finally:
            with torch.no_grad():
                for each, old in zip(self._changing(), kept, strict=True):
                    each.copy_(old)
        return program

    def _body(self, program: Program) -> None:
        """Run a step on the blocks of a program, by operations of the device alone."""
        given, result, step = program.given, program.result, self._step
        for weight in self._weights:
            weight.grad = None
        result["finite"].copy_(step.finiteness())
        leaves = [
            decode(given[f"rows {number}"], shape.dim, shape.wire).requires_grad_(not shape.is_frozen)
            for number, shape in enumerate(self._groups)
        ]
        rows: list[StagedRows] = [self._rows(number, leaf, given) for number, leaf in enumerate(leaves)]
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

    def _rows(self, number: int, leaf: torch.Tensor, given: dict[str, torch.Tensor]) -> DeviceRows:
        pooling = self._poolings[number]
        names = [f"{number} {position}" for position in range(len(pooling.sequences))]
        sequences = [(given[f"{name} entries"], given[f"{name} offsets"]) for name in names]
        if (offsets := given.get(f"{number} offsets")) is None:
            return DeviceRows(pooling, leaf, given[f"ids {number}"], None, sequences)
        return DeviceRows(pooling, leaf, given[f"{number} entries"], offsets, sequences)


def _parts(array: NDArray[np.uint8], blocks: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Return the consecutive parts of an array that have the lengths of `blocks`."""
    stops = list(accumulate(map(len, blocks)))
    return [array[stop - len(block) : stop] for stop, block in zip(stops, blocks, strict=True)]


def decode_on_host(group: GroupRows, shape: GroupShape) -> torch.Tensor:
    """Return the unique rows of a batch, float32 [U, dim], in the host's memory."""
    parts = [torch.tensor(block) for block in group.rows]
    return torch.cat([decode(part, shape.dim, shape.wire) for part in parts] or [torch.empty(0, shape.dim)])


def _used(layout: BlockLayout, kind: str, counts: Sequence[int]) -> int:
    """Return the bytes of a block up to the end of the used part of its last array, which is one of rows."""
    last = list(layout.fields.values())[-1]
    name, _, number = last.name.rpartition(" ")
    if name != kind:
        return layout.nbytes
    return layout.starts[last.name] + counts[int(number)] * last.shape[1]


def _apart(pairs: dict[str, Pair]) -> dict[str, float]:
    """Return the greatest difference of each pair of arrays, relative to the greatest magnitude of the second."""
    return {
        name: float(np.abs(ours - theirs).max(initial=0.0) / max(float(np.abs(theirs).max(initial=0.0)), 1e-30))
        for name, (ours, theirs) in pairs.items()
    }
