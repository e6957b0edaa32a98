"""A saved network with all its rows in this process, for work that needs no servers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from persia_cli.config.schema import Run
from persia_cli.data.read.batch import Batch
from persia_cli.errors import UserError
from persia_cli.model.build import build_model
from persia_cli.model.calibration import calibrate, factors_of, unchanged
from persia_cli.model.outputs import split_output
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import Location
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.checkpoints.manifest import calibration_of, read_manifest, verified_folder
from persia_cli.store.checkpoints.row_files import load_shard
from persia_cli.store.checkpoints.saved_rows import RowFile, saved_rows
from persia_cli.store.layout import ROWS_PER_PARTITION, EmbeddingLayout
from persia_cli.store.shard import Shard
from persia_cli.training.dense_state import load_weights
from persia_cli.training.device import CPU, prepare_torch
from persia_cli.training.inputs import Samples, group_shapes
from persia_cli.training.pooling import Staging, model_batch
from persia_cli.wire.messages import GroupRows


def load_network(run: Run, checkpoint: Location, corrects: bool = False) -> nn.Module:
    """Return a saved network in evaluation mode, with corrected logits; raises CheckpointError for a damaged one.

    It is also raised for one of another model. With `corrects`, the network has factors for a correction in any case.
    """
    prepare_torch(run.train.threads)
    shape = input_shape(run, embedding_layout(run))
    network = build_model(run.model, shape, run.seed)
    load_weights(verified_folder(checkpoint, "dense"), network)
    factors = factors_of(calibration_of(run, checkpoint), shape.tasks)
    if corrects or factors is not None:
        calibrate(network, unchanged(shape.tasks) if factors is None else factors)
    return network.eval()


def _with_space(layout: EmbeddingLayout, files: Sequence[RowFile]) -> EmbeddingLayout:
    """Return the layout with memory for all rows of these files, also those that were on disks."""
    rows = sum((Counter(file.rows.tables) for file in files), Counter[str]())
    # Keys do not fill buckets evenly, so a small partition would leave out some of as many rows as its capacity.
    needed = (sum(rows[table.name] for table in group.tables) + ROWS_PER_PARTITION for group in layout.groups)
    pairs = zip(layout.groups, needed, strict=True)
    groups = (replace(group, capacity=count, partitions=1, cold_bytes=0) for group, count in pairs)
    return replace(layout, groups=tuple(groups))


class LoadedModel:
    """The network of a checkpoint in evaluation mode, in float32, and all its rows; nothing changes them."""

    def __init__(self, run: Run, checkpoint: Location, device: torch.device = CPU) -> None:
        """Load both; raises CheckpointError as `load_network`."""
        layout = embedding_layout(run)
        files = saved_rows(checkpoint, read_manifest(checkpoint), with_dense=False)
        self._planner, self._shard = RowPlanner(layout, 1), Shard(_with_space(layout, files), 0, 1)
        load_shard(self._shard, files)
        self.network = load_network(run, checkpoint).to(device)
        self._numbers = [group.number for group in layout.feature_groups]
        self._staging = Staging(group_shapes(layout), device, by_kernels=True)

    def rows_of(self, batch: Batch) -> list[GroupRows]:
        """Return the rows of a batch's ids, group by group; ids without a row are zeros."""
        groups = []
        plan = self._planner.plan(batch.ids, batch.offsets, batch.size)
        for number, unique in zip(self._numbers, plan, strict=True):
            block = self._shard.look_up(number, unique.keys, unique.tables, 0, create=False)
            groups.append(GroupRows([block], unique.inverse, unique.offsets))
        return groups

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        """Return the network's logits [n, T] of a batch's samples; raises UserError if one is not finite."""
        staged = self._staging.stage(Samples(batch.dense, batch.labels, None, ()), self.rows_of(batch))
        with torch.no_grad():
            output = self.network(model_batch(self._staging.poolings, staged.rows, staged.dense))
        logits: NDArray[np.float32] = split_output(output)[0].float().cpu().numpy()
        if not np.isfinite(logits).all():
            raise UserError("outputs of the model are not finite, so it cannot be judged; lower learning rates")
        return logits
