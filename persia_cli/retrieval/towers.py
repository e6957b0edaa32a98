"""The towers of a saved model, in one process: batches of ids become vectors of users and items."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.config.schema import Run
from persia_cli.data.batch import Batch
from persia_cli.model.build import build_model
from persia_cli.model.two_sides import Sides, TwoSides
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.network import input_shape
from persia_cli.storage.places import Place
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.chain import read_chain
from persia_cli.store.manifest import verified_folder
from persia_cli.store.shard import Shard
from persia_cli.store.snapshot import load_shard
from persia_cli.train.dense_state import load_weights
from persia_cli.train.device import CPU, prepare_torch
from persia_cli.train.inputs import Samples, group_shapes
from persia_cli.train.pooling import model_batch
from persia_cli.train.staging import Staging
from persia_cli.wire.messages import GroupRows


class Vectors(NamedTuple):
    """Vectors float32 [n, width] of the users and of the items of n samples."""

    users: NDArray[np.float32]
    items: NDArray[np.float32]


class SavedTowers:
    """All rows of a checkpoint and its network of two sides, on the CPU."""

    def __init__(self, run: Run, checkpoint: Place) -> None:
        """Load them; raises CheckpointError for a damaged checkpoint, or one of another model."""
        prepare_torch(run.train.threads)
        layout = embedding_layout(run)
        self._planner, self._shard = RowPlanner(layout, 1), Shard(layout, 0, 1)
        self._groups = [group.number for group in layout.feature_groups]
        load_shard(self._shard, read_chain(checkpoint).row_files(with_dense=False))
        network = build_model(run.model, input_shape(run, layout), run.seed).eval()
        assert isinstance(network, TwoSides)
        network.gives_vectors = True
        self._network = network
        self._staging = Staging(group_shapes(layout), CPU, by_kernels=True)
        load_weights(verified_folder(checkpoint, "dense"), self._network)

    def vectors(self, batch: Batch) -> Vectors:
        """Return the vectors of a batch's samples; ids without a row count as zeros."""
        groups = []
        for number, unique in zip(self._groups, self._planner.plan(batch.ids, batch.offsets, batch.size), strict=True):
            block = self._shard.look_up(number, unique.keys, unique.tables, 0, create=False)
            groups.append(GroupRows([block], unique.inverse, unique.offsets))
        staged = self._staging.stage(Samples(batch.dense, batch.labels, None, float(batch.size)), groups)
        with torch.no_grad():
            sides: Sides = self._network(model_batch(self._staging.poolings, staged.rows, staged.dense))
        return Vectors(sides.user.float().numpy(), sides.item.float().numpy())
