"""Rows with values that cannot be used, which `dataset.max_bad_rows` leaves out.

A bad row keeps its place in the order of samples, so that all other rows stay in their steps and a resumed run
continues as ever. A copy of a good row of the same row group, with weight 0, takes its place: it changes neither the
loss nor metrics. A row is identified by its number over all files, so that it counts once, however often and by however
many loaders it is read. In a prediction, where each row needs its score, a bad row is an error.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.split import PredictSplit
from persia_cli.data.read.slices import RowPiece
from persia_cli.errors import DataError

Result = TypeVar("Result")


class BadValueError(DataError):
    """Values of a column that cannot be used; `rows` int64 are rows of the table that have one, but not always all."""

    def __init__(self, text: str, rows: NDArray[np.int64]) -> None:
        super().__init__(text)
        self.rows = rows


def bad_rows_allowed(dataset: ParquetDataset) -> int:
    """Return how many rows with bad values may be left out."""
    return 0 if isinstance(dataset.split, PredictSplit) else dataset.max_bad_rows


def leaving_out(
    piece: RowPiece, allowed: int, decode: Callable[[RowPiece], Result]
) -> tuple[Result, NDArray[np.int64], str]:
    """Decode a piece; return the result, the positions of its bad rows among the split's, and a sentence on the first.

    Good rows of the split stand in their places. Raise the BadValueError of `decode` if more than `allowed` rows are
    bad, or all.
    """
    bad, text, whole = np.empty(0, np.int64), "", piece.table
    split_rows = np.arange(whole.num_rows) if piece.rows is None else piece.rows
    while True:
        try:
            return decode(piece), np.flatnonzero(np.isin(split_rows, bad)), text
        except BadValueError as error:
            bad, text = np.union1d(bad, error.rows), text or str(error)
            good = np.setdiff1d(split_rows, bad)
            if bad.size > allowed or not good.size:
                raise
        rows = np.arange(whole.num_rows)
        rows[bad] = good[np.maximum(np.searchsorted(good, bad) - 1, 0)]
        piece = replace(piece, table=whole.take(rows))
