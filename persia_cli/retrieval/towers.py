"""The two towers of a network: batches of ids become vectors of users and items."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.config.schema import Run
from persia_cli.data.read.batch import Batch
from persia_cli.evaluation.loaded_model import LoadedModel
from persia_cli.model.calibration import NAME
from persia_cli.model.two_sides import TwoSides
from persia_cli.plan.columns import sparse_features
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import Location
from persia_cli.training.device import CPU
from persia_cli.training.inputs import Samples, group_shapes
from persia_cli.training.pooling import Staging, model_batch
from persia_cli.wire.messages import GroupRows

RowsOf = Callable[[Batch], list[GroupRows]]
"""A function that returns the rows of a batch's ids, group by group; ids without a row are zeros."""


class Vectors(NamedTuple):
    """Vectors float32 [n, width] of the users and of the items of n samples."""

    users: NDArray[np.float32]
    items: NDArray[np.float32]


class Towers:
    """A two-tower network on its device, in float32, and the source of its rows."""

    def __init__(self, run: Run, network: nn.Module, device: torch.device, rows_of: RowsOf) -> None:
        assert isinstance(network, TwoSides)
        self._network, self._rows_of = network, rows_of
        self._lengths = [feature.max_length for feature in sparse_features(run)]
        self._staging = Staging(group_shapes(embedding_layout(run)), device, by_kernels=True)

    def logits(self, products: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits of products of two vectors, corrected as those of the network."""
        logits = products / np.float32(self._network.temperature)
        factors = getattr(self._network, NAME, None)
        return logits if factors is None else logits * factors[0].numpy() + factors[1].numpy()

    def vectors(self, batch: Batch) -> Vectors:
        """Return the vectors of a batch's samples, whose lists may be longer than those that the network reads.

        The network is in evaluation mode then.
        """
        batch = batch.newest(self._lengths)
        samples = Samples(batch.dense, batch.labels, None, ())
        staged = self._staging.stage(samples, self._rows_of(batch))
        self._network.eval()
        with torch.no_grad():
            sides = self._network.vectors(model_batch(self._staging.poolings, staged.rows, staged.dense))
        return Vectors(*(side.float().cpu().numpy() for side in sides))


def saved_towers(run: Run, checkpoint: Location) -> Towers:
    """Load all rows and the network of a checkpoint into this process.

    Raises CheckpointError for a damaged checkpoint, or one of another model.
    """
    saved = LoadedModel(run, checkpoint)
    return Towers(run, saved.network, CPU, saved.rows_of)
