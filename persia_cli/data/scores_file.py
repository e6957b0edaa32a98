"""The file that predictions are written to: kept columns beside the scores of each row, in the order of the data."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.kept import KeptColumns
from persia_cli.data.rowgroup import one_line
from persia_cli.data.scan import scan
from persia_cli.errors import UserError

PROBABILITY, LOGIT = "probability", "logit"
"""What a column of scores ends in, after the name of its label."""

GROUP_ROWS = 2**17
"""Rows that are gathered before they are written, and make up a row group."""

FORMATS = (".parquet", ".csv")


def open_scores(dataset: ParquetDataset, path: Path, keep: Sequence[str], logits: bool) -> "ScoresFile":
    """Begin the scores of a data set; raises DataError for columns that are not there, else as ScoresFile does."""
    return ScoresFile(path, dataset.labels, KeptColumns(scan(dataset), keep), logits)


class ScoresFile:
    """Grows row by row under another name, and gets its own when it is whole. Used by one thread.

    Each label has a column `LABEL_probability`, float32, and if wanted one of its logits, float32, `LABEL_logit`.
    """

    def __init__(self, path: Path, labels: Sequence[str], kept: KeptColumns, logits: bool) -> None:
        """Begin the file; raises UserError where it cannot be written, or cannot hold these columns."""
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._kept = kept
        self._logits = logits
        names = [f"{label}_{kind}" for label in labels for kind in ((PROBABILITY, LOGIT) if logits else (PROBABILITY,))]
        self._schema = pa.schema([*kept.fields, *(pa.field(name, pa.float32()) for name in names)])
        _check_columns(path, self._schema)
        self._waiting: list[NDArray[np.float32]] = []
        self._gathered = 0
        self.rows = 0
        """Rows taken so far."""
        try:
            self._writer: Any = (csv.CSVWriter if path.suffix == ".csv" else pq.ParquetWriter)(self._part, self._schema)
        except (OSError, pa.ArrowException) as error:
            raise _unwritable(path, error) from error

    def add(self, logits: NDArray[np.float32]) -> None:
        """Take the logits [n, T] of the next n rows; the array must not be written any more.

        Raises UserError where writing fails, DataError where the kept columns cannot be read.
        """
        self._waiting.append(logits)
        self._gathered += len(logits)
        self.rows += len(logits)
        if self._gathered >= GROUP_ROWS:
            self._write()

    def publish(self) -> None:
        """Write what is left and give the file its name; raises as `add` does."""
        if self._gathered:
            self._write()
        self._kept.close()
        try:
            self._writer.close()
            self._part.replace(self._path)
        except (OSError, pa.ArrowException) as error:
            raise _unwritable(self._path, error) from error

    def discard(self) -> None:
        """Remove what was written if it has not been published."""
        self._kept.close()
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._part.unlink(missing_ok=True)

    def _write(self) -> None:
        logits = np.concatenate(self._waiting)
        columns = self._kept.take(self._gathered)
        self._waiting, self._gathered = [], 0
        for each in logits.T:
            columns.append(pa.array(probabilities(each)))
            if self._logits:
                columns.append(pa.array(each))
        try:
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        except (OSError, pa.ArrowException) as error:
            raise _unwritable(self._path, error) from error


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logistic function of logits, computed in float64 and rounded once."""
    return np.exp(-np.logaddexp(0.0, -logits.astype(np.float64))).astype(np.float32)


def _check_columns(path: Path, schema: Any) -> None:
    """Raise UserError for a format that there is not, or columns that it cannot hold."""
    if path.suffix not in FORMATS:
        raise UserError(f"{path.name}: scores are Parquet or CSV; let the name end in {' or '.join(FORMATS)}")
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    if twice:
        raise UserError(f"there would be two columns {twice[0]} in {path.name}; keep each column once")
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if path.suffix == ".csv" and nested:
        raise UserError(f"column {nested[0]} holds more than one value a row, which CSV cannot; write .parquet instead")


def _unwritable(path: Path, error: BaseException) -> UserError:
    return UserError(f"the scores cannot be written to {path} ({one_line(error)}); give another file")
