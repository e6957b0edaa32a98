"""The kernels that update rows, one for each optimizer; a common one would be slower for each."""

import numpy as np
from numba import types

from persia_cli.kernels.rows.hashing import mix
from persia_cli.kernels.rows.optimizers import CHANGES, REFUSED, RULE, scale_of
from persia_cli.kernels.rows.rows import (
    FAR,
    FLOAT32,
    INT8,
    LANES,
    ZERO,
    RowArena,
    burst_of,
    pack_line,
    prefetch_far,
    prefetch_first,
    prefetch_later,
    start_of,
)
from persia_cli.kernels.table.arguments import REQUEST, TABLE
from persia_cli.kernels.table.journal import log_undo, record_skip
from persia_cli.kernels.toolchain.compile import inlined, kernel, read
from persia_cli.kernels.toolchain.needs import update_need
from persia_cli.kernels.toolchain.simd import splat

F32 = types.float32
SHORT_WIDTHS = {"sgd": 16, "adagrad": 32, "rowwise_adagrad": 20, "adam": 48, "rowwise_adam": 20, "ftrl": 48}
"""Words of a row of dim 16 in float32, the most common one: with them as constants, code has no loops in a row."""


def _updater(name, change_row):
    """Return the kernel of one optimizer."""
    short_width = np.uint64(SHORT_WIDTHS[name])

    @inlined
    def change_rows(table, request, plain, short, rows, rule, gradients, start, stop):
        """Update the rows found[start:stop]; `plain`: float32, whole vectors, no l2, decay, clip or bound."""
        # `plain` and `short` are constants at each call, so that the code they exclude is not compiled.
        journal, numbers, counts = table.journal, request.found.rows, table.counts
        undoes = journal.rows.size > 0
        for i in range(start, stop):
            if short:
                prefetch_far(rows, numbers, i + FAR, stop)
            else:
                prefetch_later(rows, numbers, i, stop, rows.width)
            at = i * rows.dim
            if numbers[i] < 0:
                counts.missing_gradients[request.tables[i]] += 1
                if undoes and i >= request.done:
                    record_skip(journal, i, ZERO)
                continue
            row_at = start_of(rows, numbers[i])  # before the journal is written, after which it would be read again
            scale = scale_of(plain, gradients, at, rows.dim, rule.clip)
            if scale == REFUSED:
                counts.refused_gradients[request.tables[i]] += 1
                if undoes and i >= request.done:
                    record_skip(journal, i, ZERO)
                continue
            if undoes:
                if i < request.done:
                    continue
                log_undo(journal, rows, row_at, i)
            noise = np.uint32(0)
            if not plain and rows.storage != FLOAT32:
                noise = np.uint32(mix(rule.noise ^ request.keys[i]) & np.uint64(2**32 - 1))
            change_row(plain, rows, rule, row_at, gradients, at, splat(scale), noise)
            if not plain and rows.storage == INT8:
                pack_line(rows, row_at, True, noise)

    def update(table, request, rule, gradients):
        """Apply the optimizer to the rows found with gradients (flat [n, dim]); row -1 is skipped and counted."""
        rows, numbers = table.rows, request.found.rows
        plain = rows.storage == FLOAT32 and rows.dim % LANES == ZERO and rule.plain
        size = np.uint64(request.keys.size)
        if plain and rows.dim == LANES and rows.width == short_width:
            short = RowArena(rows.arena, short_width, LANES, LANES, FLOAT32, rows.line)
            for i in range(FAR):
                prefetch_far(short, numbers, i, size)
            change_rows(table, request, True, True, short, rule, gradients, ZERO, size)
            return
        burst = burst_of(rows, rows.width, max(size, np.uint64(1)))
        for start in range(ZERO, size, burst):
            stop = min(start + burst, size)
            prefetch_first(rows, numbers, start, stop, rows.width)
            if plain:
                change_rows(table, request, True, False, rows, rule, gradients, start, stop)
            else:
                change_rows(table, request, False, False, rows, rule, gradients, start, stop)

    # Files of the cache are named after the qualified name, which would otherwise be the same for all optimizers.
    update.__name__ = update.__qualname__ = f"update_{name}"
    return kernel(types.void(TABLE, REQUEST, RULE, read(F32)), for_=update_need(name))(update)


UPDATES = {name: _updater(name, change) for name, change in CHANGES.items()}
"""The kernel of each kind of optimizer: (table, request, rule, gradients)."""
