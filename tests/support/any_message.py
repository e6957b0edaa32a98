"""Any message with any arrays that it may carry, for tests of what becomes of them on the way."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np

from persia_cli.wire.parts import BatchId, Count, Message, Sender, TableTotals

COUNTS = st.integers(0, 2**63 - 1)
BODIES = st.dictionaries(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
)
TOTALS = st.builds(TableTotals, COUNTS, COUNTS, COUNTS, COUNTS)
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    Count: COUNTS,
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(),
    bytes: st.binary(),
    dict[str, Any]: BODIES,
    dict[str, list[str]]: st.dictionaries(st.text(), st.lists(st.text())),
    tuple[Count, ...]: st.lists(COUNTS).map(tuple),
    BatchId: st.builds(BatchId, COUNTS, st.integers(0, 1), COUNTS, COUNTS),
    Sender: st.builds(Sender, st.text(), COUNTS, COUNTS),
    TableTotals: TOTALS,
    tuple[TableTotals, ...]: st.lists(TOTALS).map(tuple),
}


def field_values(field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any]:
    return st.integers(0, 1) if field.name == "split" else FIELDS[field.type]


@st.composite
def messages(draw: st.DrawFn, kind: type[Message]) -> tuple[Message, list[np.ndarray]]:
    """Any message of a kind with any arrays that it may carry."""
    message = kind(**{field.name: draw(field_values(field)) for field in msgspec.structs.fields(kind)})
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = []
    for _ in range(draw(st.integers(0, 3)) if kind.PER_GROUP else 1):
        sizes: dict[str, int] = {}
        for spec in kind.ARRAYS:
            for _ in range(draw(st.integers(1, 3)) if spec.many else 1):
                free = [draw(st.integers(0, 5)) for _ in range(spec.ndim)]
                shape = [
                    size if dim == "*" else sizes.setdefault(dim, size)
                    for dim, size in zip(spec.dims.split(), free, strict=True)
                ]
                dtype = np.dtype(spec.dtype)
                nbytes = int(np.prod(shape)) * dtype.itemsize
                arrays.append(np.frombuffer(random.bytes(nbytes), dtype).reshape(shape))
    return message, arrays


def raw(frames: list[bytes | memoryview]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def same(arrays: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Equal to the bit, shapes and dtypes included."""
    return [(a.dtype, a.shape, a.tobytes()) for a in arrays] == [(a.dtype, a.shape, a.tobytes()) for a in others]
