"""The two arguments of kernels that search or change a table: the table, and a request for some of its keys."""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.rows.rows import ROWS, RowArena
from persia_cli.kernels.table.buckets import INDEX, Index
from persia_cli.kernels.table.cold import COLD, ColdLog
from persia_cli.kernels.table.journal import JOURNAL, KernelJournal
from persia_cli.kernels.table.old_rows import OLD_ROWS, OldRows
from persia_cli.kernels.table.slots import EVICTION_RULES, EvictionRules
from persia_cli.kernels.toolchain.compile import read, write

F32, U8, U16, U32, U64, I64 = types.float32, types.uint8, types.uint16, types.uint32, types.uint64, types.int64


class RowInit(NamedTuple):
    """The rules by which new rows are admitted, placed and initialized."""

    seed: np.uint64
    salts: NDArray[np.uint64]
    """uint64[tables]: salt of each table; the next arrays up to `min_count` are indexed by table number too."""
    bounds: NDArray[np.float32]
    """Initial values lie in [-bound, bound)."""
    admission: NDArray[np.uint64]
    """An id gets a row if its 24-bit random draw is below this value."""
    min_count: NDArray[np.uint64]
    """An id gets a row at the look-up of this number; 0 and 1 mean the first."""
    states: NDArray[np.float32]
    """float32[width - state_at]: initial values of the optimizer's states."""
    eviction: EvictionRules


ROW_INIT = types.NamedTuple((U64, write(U64), write(F32), write(U64), write(U64), write(F32), EVICTION_RULES), RowInit)


class Counts(NamedTuple):
    """Counts of the outcomes of training; each is int64[tables], by table number."""

    hits: NDArray[np.int64]
    admitted: NDArray[np.int64]
    refused: NDArray[np.int64]
    not_admitted: NDArray[np.int64]
    evicted: NDArray[np.int64]
    expired: NDArray[np.int64]
    """Those of the evicted rows that had expired."""
    returned: NDArray[np.int64]
    """Rows that returned from the cold log to memory."""
    missing_gradients: NDArray[np.int64]
    """Gradients of keys without a row."""
    refused_gradients: NDArray[np.int64]
    """Gradients with a value whose square is not finite: the sums of squares in most optimizers would never recover."""


COUNTS = types.NamedUniTuple(write(I64), 9, Counts)


class KernelTable(NamedTuple):
    """The rows of one feature group on one server."""

    index: Index  # type: ignore[assignment]  # it hides `tuple.index`, which nothing calls
    rows: RowArena
    old: OldRows
    """Memory for rows of a snapshot that change; all arrays are empty without one."""
    cold: ColdLog
    counts: Counts
    rules: RowInit
    journal: KernelJournal


TABLE = types.NamedTuple((INDEX, ROWS, OLD_ROWS, COLD, COUNTS, ROW_INIT, JOURNAL), KernelTable)


class FoundRows(NamedTuple):
    """The results of a look-up."""

    rows: NDArray[np.int64]
    """int64[keys]: the row of each key, -1 for none."""
    new: NDArray[np.uint32]
    """uint32[keys], of which the first are used: positions of the keys that had no row before."""
    unknown: NDArray[np.int64]
    """int64[1]: the number of those keys, valid from ADDING on."""
    out: NDArray[np.uint16]
    """uint16[keys * words of a row on the wire]: embeddings, zeros for keys without a row."""

    @classmethod
    def only(cls, rows: NDArray[np.int64]) -> "FoundRows":
        """Return the rows for a kernel that reads them, or needs none."""
        return cls(rows, np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.uint16))


FOUND_ROWS = types.NamedTuple((write(I64), write(U32), write(I64), write(U16)), FoundRows)


class KernelRequest(NamedTuple):
    """The keys of one feature group that a batch looks up or updates."""

    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]
    """uint16[keys]: the table number of each."""
    step: np.uint32
    number: np.uint8
    """Number of the group's look-up, modulo 256."""
    done: np.uint64
    """Positions before this one are done: of new keys in a look-up, of keys in an update."""
    wire: int
    """Code of the dtype of sent rows."""
    found: FoundRows


REQUEST = types.NamedTuple((read(U64), read(U16), U32, U8, U64, I64, FOUND_ROWS), KernelRequest)


def new_request(
    keys: NDArray[np.uint64],
    tables: NDArray[np.uint16],
    found: FoundRows,
    step: int = 0,
    look_up: int = 0,
    done: int = 0,
    wire: int = 0,
) -> KernelRequest:
    """Return a request; `look_up` is the number of the group's look-up."""
    numbers = np.uint32(step), np.uint8(look_up % 256), np.uint64(done)
    return KernelRequest(_read_only(keys), _read_only(tables), *numbers, int(wire), found)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that fits a named tuple, where types must be exactly the declared ones."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
