"""The dense network of an exported model, computed by onnxruntime."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import CheckpointError, UserError, one_line
from persia_cli.serving.row_reader import Inputs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

LOGITS = "logits"
"""Name of the network's output, float32 [n, tasks]."""


class FrozenNetwork:
    """A network without state: inputs in, logits out."""

    def __init__(self, path: Path, threads: int) -> None:
        """Load the network; raises UserError if onnxruntime is missing, CheckpointError for a file that it refuses."""
        self._session = _session(path, threads)
        self._names = [each.name for each in self._session.get_inputs()]

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
