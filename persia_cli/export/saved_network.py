"""The scores of a saved model by the training code, without a job and without its tables in memory."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.checkpoint.content import SortedRows
from persia_cli.config.schema import Run
from persia_cli.data.read.batch import Batch
from persia_cli.evaluation.loaded_model import load_network
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import Location
from persia_cli.store.batch_rows import RowPlanner, UniqueRows
from persia_cli.store.checkpoints.manifest import read_manifest
from persia_cli.store.layout import GroupSpec
from persia_cli.store.wire_rows import encode_rows
from persia_cli.training.device import CPU
from persia_cli.training.inputs import Samples, group_shapes
from persia_cli.training.pooling import Staging, model_batch
from persia_cli.wire.messages import GroupRows

SAMPLES = 4096
"""Number of samples that the network computes at once."""
OnRows = Callable[[int], None]


class SavedNetwork:
    """A network in evaluation mode, in float32 on the CPU, and the rows of its checkpoint.

    Rows are used as stored, not rounded to the dtype of the wire.
    """

    def __init__(self, run: Run, checkpoint: Location) -> None:
        """Load the dense weights; raises CheckpointError for a damaged checkpoint, or one of another model."""
        run = run.model_copy(update={"embedding": run.embedding.model_copy(update={"wire": "float32"})})
        self.layout = embedding_layout(run)
        self.shape = input_shape(run, self.layout)
        self.network = load_network(run, checkpoint)
        self.groups = group_shapes(self.layout)
        self._checkpoint, self._manifest = checkpoint, read_manifest(checkpoint)
        self._planner = RowPlanner(self.layout, 1)
        self._staging = Staging(self.groups, CPU, by_kernels=True)

    def logits(self, batch: Batch, on_rows: OnRows = lambda rows: None) -> NDArray[np.float32]:
        """Return the logits float32 [n, tasks] of a batch, for which all rows of the checkpoint are read once.

        Calls `on_rows` with the number of rows of each portion.
        """
        planned = self._planner.plan(batch.ids, batch.offsets, batch.size)
        groups = []
        for group, unique in zip(self.layout.feature_groups, planned, strict=True):
            rows = self._rows(group, unique, on_rows)
            groups.append(GroupRows([encode_rows(rows, "float32")], unique.inverse, unique.offsets))
        cuts = [slice(first, min(first + SAMPLES, batch.size)) for first in range(0, batch.size, SAMPLES)]
        samples = Samples(batch.dense, batch.labels, None, ())
        logits = [np.empty((0, self.shape.tasks), np.float32)]
        with torch.no_grad():
            for part in self._staging.stage_parts(samples, groups, cuts) if cuts else []:
                output = self.network(model_batch(self._staging.poolings, part.rows, part.dense))
                logits.append(output.float().numpy())
        return np.concatenate(logits)

    def _rows(self, group: GroupSpec, unique: UniqueRows, on_rows: OnRows) -> NDArray[np.float32]:
        """Return the embeddings of a batch's unique rows, zeros for those that are not in the checkpoint."""
        found = np.zeros((unique.keys.size, group.dim), np.float32)
        order = np.argsort(unique.keys, kind="stable")
        keys, tables = unique.keys[order], unique.tables[order]
        numbers = {table.name: table.number for table in group.tables}
        saved = SortedRows(self._checkpoint, self._manifest, group.number)
        known = np.array([numbers[name] for name in saved.names], np.uint16)
        for block in saved:
            first = np.searchsorted(keys, block.keys[0], "left")
            wanted = np.arange(first, np.searchsorted(keys, block.keys[-1], "right"))
            place = np.searchsorted(block.keys, keys[wanted], "left")
            # Keys of two tables may be equal; then their rows are neighbours.
            for _ in range(len(known)):
                inside = place < block.keys.size
                wanted, place = wanted[inside], place[inside]
                same = block.keys[place] == keys[wanted]
                wanted, place = wanted[same], place[same]
                if not wanted.size:
                    break
                hit = known[block.tables[place]] == tables[wanted]
                found[order[wanted[hit]]] = block.vectors["embedding"][place[hit]]
                wanted, place = wanted[~hit], place[~hit] + 1
            on_rows(block.keys.size)
        return found
