"""A model in use: batches in, predictions out. onnxruntime computes its dense network."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.read.batch import Batch
from persia_cli.data.read.predictions import predictions
from persia_cli.errors import CheckpointError, DataError, UserError, one_line
from persia_cli.kernels.rows import hashing
from persia_cli.serving.description import (
    FEATURES,
    NETWORK,
    FrozenGroup,
    Missing,
    ModelDescription,
    read_description,
    require_files,
)
from persia_cli.serving.fields import RequestFields, read_fields
from persia_cli.serving.row_reader import GroupReader, Inputs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


LOGITS = "logits"
"""Name of the network's output, float32 [n, tasks]."""


class FrozenNetwork:
    """A network without state: inputs in, logits out."""

    def __init__(self, path: Path, threads: int) -> None:
        """Load the network; raises UserError if onnxruntime is missing, CheckpointError for a file that it refuses."""
        self._session = _session(path, threads)
        self._names = [node.name for node in self._session.get_inputs()]

    def logits(self, inputs: Inputs) -> NDArray[np.float32]:
        """Return logits float32 [n, tasks] of at least one sample; ignores inputs that the network does not read."""
        logits: NDArray[np.float32] = self._session.run([LOGITS], {name: inputs[name] for name in self._names})[0]
        return logits


def _session(path: Path, threads: int) -> "InferenceSession":
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("onnxruntime is not installed; pip install 'persia-cli[serve]'") from error
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that wait for the next request in a loop would use seconds of the processor for each.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        raise CheckpointError(f"{path} cannot be used: {one_line(error)}; export the run again") from error


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions of n samples."""

    logits: NDArray[np.float32]
    """[n, tasks]"""
    values: NDArray[np.float32]
    """[n, tasks]: probabilities, or numbers for regression labels."""
    missing: NDArray[np.int64]
    """[features]: number of ids of each feature that had no row; of a hash stack, of rows."""


class Predictor:
    """An exported model; used by one thread. Processes that open the same folder share its memory.

    `fields` makes a batch of a request's columns.
    """

    def __init__(
        self, folder: Path, description: ModelDescription, missing: Missing | None, threads: int,
        before: "Predictor | None" = None,
    ) -> None:  # fmt: skip
        """`before` may have the same fields, which take longer to read than all else."""
        self.folder, self.description = folder, description
        is_same = before is not None and before.description.note(FEATURES) == description.note(FEATURES)
        self.fields: RequestFields = before.fields if before is not None and is_same else read_fields(folder)
        self._network = FrozenNetwork(folder / NETWORK, threads)
        overlays: Sequence[FrozenGroup | None] = description.overlays or [None] * len(description.groups)
        self._groups = [
            GroupReader(folder, group, description.features, description.seed, missing or "zeros", overlay)
            for group, overlay in zip(description.groups, overlays, strict=True)
        ]  # fmt: skip
        has_rare_ids = any(group.has_rare_ids for group in self._groups)
        if missing == "rare" and not has_rare_ids:
            raise UserError(
                f"no table of {folder} has a row for rare ids, so missing=rare has none to give; such rows come of "
                "data that were prepared with --min-count"
            )
        self.missing: Missing = missing or ("rare" if has_rare_ids else "zeros")
        for group in self._groups:
            group.let_missing_be(self.missing)
        self._links = [output.link for output in description.outputs]

    @classmethod
    def open(
        cls, folder: Path | str, missing: Missing | None = None, threads: int = 1, check: bool = False,
        before: "Predictor | None" = None,
    ) -> Self:  # fmt: skip
        """Open an exported model; with `check` rows are also read once and compared with their checksums.

        `missing` selects the vector of ids without a row; by default `rare` if a table has a row for rare ids, since a
        request's rare id is one of them, and else zeros. `threads` compute the network. `before` is an earlier version
        of the model, with which it has files and fields in common. Raises UserError for a folder that is no exported
        model or an invalid `missing`, CheckpointError for a folder that is damaged.
        """
        if missing is not None and missing not in get_args(Missing):
            raise UserError(f"missing={missing!r} is none of {', '.join(get_args(Missing))}")
        path = Path(folder)
        description = read_description(path)
        require_files(path, description.files, contents=check)
        return cls(path, description, missing, threads, before)

    @contextmanager
    def zeros_for_missing(self) -> Iterator[None]:
        """Use zeros for ids without a row, as evaluation does, until the end of the block."""
        for group in self._groups:
            group.let_missing_be("zeros")
        try:
            yield
        finally:
            for group in self._groups:
                group.let_missing_be(self.missing)

    def predict(self, batch: Batch) -> Predictions:
        """Return the predictions of a batch; raises DataError if it is not of this model's features."""
        missing = np.zeros(len(self.description.features), np.int64)
        if not batch.size:
            empty = np.empty((0, len(self._links)), np.float32)
            self._checked(batch)
            return Predictions(empty, empty, missing)
        logits = self._network.logits(self.inputs(batch, missing))
        values = np.empty_like(logits)
        for task, link in enumerate(self._links):
            values[:, task] = predictions(logits[:, task].astype(np.float64), link)
        return Predictions(logits, values, missing)

    def inputs(self, batch: Batch, missing: NDArray[np.int64]) -> Inputs:
        """Return the network's inputs for a batch, and add to `missing` the ids of each feature that have no row."""
        single = self._checked(batch)
        inputs: Inputs = {"dense": batch.dense}
        for group in self._groups:
            inputs |= group.read(batch.ids, batch.offsets, batch.size, single, missing)
        return inputs

    def _checked(self, batch: Batch) -> NDArray[np.bool_]:
        """Return a mask of features with one id in every sample; raises DataError for a batch of another shape."""
        features, size = len(self.description.features), batch.size
        single = np.empty(features, np.bool_)
        if batch.dense.shape != (size, self.description.dense):
            raise DataError(
                f"dense values of {size} samples must have the shape {(size, self.description.dense)}, not "
                f"{batch.dense.shape}"
            )
        fits = batch.offsets.size == features * size + 1 and batch.offsets[-1] <= batch.ids.size
        if not fits or not hashing.check_offsets(batch.offsets, size, single):
            raise DataError(f"the ids of a batch of {size} samples and {features} features do not fit their offsets")
        return single
