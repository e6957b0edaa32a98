"""The blocks of memory that a graph of a step reads and writes, and their sizes."""

from collections.abc import Iterable, Sequence

import numpy as np

from persia_cli.store.wire_rows import row_bytes
from persia_cli.training.blocks import BlockLayout, Field
from persia_cli.training.dense_update import NUMBERS
from persia_cli.training.inputs import GroupShape

FLOAT, BYTES = np.dtype(np.float32), np.dtype(np.uint8)


def padded(count: int) -> int:
    """Return the padded size of an array of `count`: one of eight between two powers of two."""
    step = max(64, 1 << max(0, count.bit_length() - 4))
    return -(-max(1, count) // step) * step


def step_blocks(
    fields: Iterable[Field], rows: Sequence[int], groups: Sequence[GroupShape], samples: int, tasks: int
) -> tuple[BlockLayout, BlockLayout]:
    """Return the blocks that a graph reads and writes, with so many rows of each group; `fields` are all but rows."""
    shapes = [(count, row_bytes(group.dim, group.wire)) for count, group in zip(rows, groups, strict=True)]
    results = [
        Field("logits", FLOAT, (samples, tasks)),
        Field("loss", np.dtype(np.float64), (tasks,)),
        Field("finite", np.dtype(np.bool_), (2,)),
    ]
    results += [
        Field(f"gradients {number}", BYTES, shape)
        for number, (shape, group) in enumerate(zip(shapes, groups, strict=True))
        if not group.is_frozen
    ]
    inputs = [*fields, *(Field(f"rows {number}", BYTES, shape) for number, shape in enumerate(shapes))]
    return BlockLayout(inputs), BlockLayout(results)


def step_bytes(groups: Sequence[GroupShape], samples: int, dense: int, tasks: int) -> int:
    """Return the bytes of both blocks for samples whose ids are all different, with one id per list.

    Sequences have their full length. Longer lists take more, and ids that repeat take less.
    """
    fields = [
        Field("factors", FLOAT, (tasks,)),
        Field("dense", FLOAT, (samples, dense)),
        Field("labels", FLOAT, (samples, tasks)),
        Field("numbers", FLOAT, (NUMBERS,)),
    ]
    rows = []
    for number, group in enumerate(groups):
        rounds = group.rounds or (1,) * len(group.features)
        lengths = [feature.max_length or 1 if feature.pooling == "none" else 1 for feature in group.features]
        ids = samples * sum(length * each for length, each in zip(lengths, rounds, strict=True))
        rows.append(padded(ids))
        fields.append(Field(f"ids {number}", np.dtype(np.int32), (ids,)))
    return sum(block.nbytes for block in step_blocks(fields, rows, groups, samples, tasks))
