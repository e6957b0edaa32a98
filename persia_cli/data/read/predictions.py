"""The predictions that a network's outputs stand for."""

import numpy as np
from numpy.typing import NDArray

from persia_cli.metric import Link

Floats = NDArray[np.float64]


def predictions(outputs: Floats, link: Link) -> Floats:
    """Return probabilities of logits, or numbers, as the `link` says; a number too large for float64 is infinite."""
    if link == "identity":
        return outputs
    with np.errstate(over="ignore"):
        return np.exp(outputs) if link == "exp" else np.exp(-np.logaddexp(0.0, -outputs))
