"""The two towers of a network: batches of ids become vectors of users or of items, each computed alone."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.config.schema import Run
from persia_cli.data.read.batch import Batch
from persia_cli.evaluation.loaded_model import LoadedModel
from persia_cli.model.calibration import NAME
from persia_cli.model.causal import CausalNetwork
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.two_sides import TwoSides
from persia_cli.plan.columns import items_of, sparse_features
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import Location
from persia_cli.training.device import CPU, Copier
from persia_cli.training.inputs import Samples, entries_of, group_shapes
from persia_cli.training.pooling import Staging, model_batch
from persia_cli.training.ragged_rows import ragged_rows
from persia_cli.wire.messages import GroupRows

RowsOf = Callable[[Batch], list[GroupRows]]
"""A function that returns the rows of a batch's ids, group by group; ids without a row are zeros."""


SEQUENCES = 64
"""Sequences that are computed at a time; more do not fit into caches."""


class Towers:
    """A two-tower network on its device, in float32, and the source of its rows."""

    def __init__(self, run: Run, network: nn.Module, device: torch.device, rows_of: RowsOf) -> None:
        assert isinstance(network, TwoSides)
        self._network, self._rows_of = network, rows_of
        features, items = sparse_features(run), items_of(run.model)
        self._of_users = [0 if feature.name in items else feature.max_length for feature in features]
        self._of_items = [feature.max_length if feature.name in items else 0 for feature in features]
        self._groups = group_shapes(embedding_layout(run))
        self._staging, self._copier = Staging(self._groups, device, by_kernels=True), Copier(device)

    def logits(self, products: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits of products of two vectors, corrected as those of the network."""
        logits = products / np.float32(self._network.temperature)
        factors = getattr(self._network, NAME, None)
        return logits if factors is None else logits * factors[0].numpy() + factors[1].numpy()

    def users(self, batch: Batch) -> NDArray[np.float32]:
        """Return the vectors float32 [n, width] of a batch's users, whose lists may be longer than those that are read.

        The network is in evaluation mode then.
        """
        batch = batch.newest(self._of_users)
        if isinstance(self._network, CausalNetwork):
            return self._last_states(self._network, batch)
        return self._padded(self._network.users, batch)

    def items(self, batch: Batch) -> NDArray[np.float32]:
        """Return the vectors float32 [n, width] of a batch's items; the network is in evaluation mode then."""
        return self._padded(self._network.items, batch.newest(self._of_items))

    def _padded(self, vectors: Callable[[ModelBatch], torch.Tensor], batch: Batch) -> NDArray[np.float32]:
        samples = Samples(batch.dense, batch.labels, None, ())
        staged = self._staging.stage(samples, self._rows_of(batch))
        self._network.eval()
        with torch.no_grad():
            side = vectors(model_batch(self._staging.poolings, staged.rows, staged.dense))
        return side.float().cpu().numpy()

    def _last_states(self, network: CausalNetwork, batch: Batch) -> NDArray[np.float32]:
        """Return the states after sequences, computed ragged, some of similar length at a time."""
        [number] = [number for number, shape in enumerate(self._groups) if shape.features]
        group, shape = self._rows_of(batch)[number], self._groups[number]
        leaf = self._staging.poolings[number].leaf(group)
        [place] = [place for place, feature in enumerate(shape.features) if feature.name == network.sequence]
        per_id = shape.rounds[place] if shape.rounds else 1
        entries, bounds = entries_of(group, place, batch.size)
        rows, bounds = entries.reshape(-1, per_id), bounds // per_id
        lengths, stops = np.diff(bounds), bounds[1:]
        order = np.argsort(lengths, kind="stable")
        states = np.empty((batch.size, shape.dim), np.float32)
        network.eval()
        for cut in (order[start : start + SEQUENCES] for start in range(0, batch.size, SEQUENCES)):
            gaps = batch.dense[cut] if network.timed else None
            ragged, _, _ = ragged_rows(rows, stops[cut], lengths[cut], self._copier.copy, gaps)
            self._copier.join()
            with torch.no_grad():
                states[cut] = ragged.last(network.states(*ragged.read(leaf)).float()).cpu().numpy()
        return states


def saved_towers(run: Run, checkpoint: Location) -> Towers:
    """Load all rows and the network of a checkpoint into this process.

    Raises CheckpointError for a damaged checkpoint, or one of another model.
    """
    saved = LoadedModel(run, checkpoint)
    return Towers(run, saved.network, CPU, saved.rows_of)
