"""The scores of a saved model by the training code, without a job and without its tables in memory."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from persia_cli.checkpoint.content import SortedRows
from persia_cli.config.schema import Run
from persia_cli.data.read.batch import Batch
from persia_cli.evaluation.loaded_model import load_network
from persia_cli.export.graph import weights_by_name
from persia_cli.model.inputs import ModelBatch
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

    def __init__(self, run: Run, checkpoint: Location, corrects: bool = False) -> None:
        """Load the dense weights; raises CheckpointError for a damaged checkpoint, or one of another model.

        `corrects` is as in `load_network`.
        """
        run = run.model_copy(update={"embedding": run.embedding.model_copy(update={"wire": "float32"})})
        self._run = run
        self.layout = embedding_layout(run)
        self.shape = input_shape(run, self.layout)
        self.network = load_network(run, checkpoint, corrects)
        self.groups = group_shapes(self.layout)
        self._checkpoint, self._manifest = checkpoint, read_manifest(checkpoint)
        self._planner = RowPlanner(self.layout, 1)
        self._staging = Staging(self.groups, CPU, by_kernels=True)

    def logits(self, batch: Batch, on_rows: OnRows = lambda rows: None) -> NDArray[np.float32]:
        """Return the logits float32 [n, tasks] of a batch, for which all rows of the checkpoint are read once.

        Calls `on_rows` with the number of rows of each portion.
        """
        rows = self.rows_of(batch)
        for group, found in zip(self.layout.feature_groups, rows, strict=True):
            saved = SortedRows(self._checkpoint, self._manifest, group.number)
            for block in saved:
                found.take(block.names, block.keys, block.tables, block.vectors["embedding"])
                on_rows(block.keys.size)
        logits = [np.empty((0, self.shape.tasks), np.float32)]
        return np.concatenate([*logits, *map(self.scores, self.inputs(batch, rows))])

    def rows_of(self, batch: Batch) -> "list[WantedRows]":
        """Return the rows of a batch by group, all of them zeros."""
        planned = self._planner.plan(batch.ids, batch.offsets, batch.size)
        return [WantedRows(*pair) for pair in zip(self.layout.feature_groups, planned, strict=True)]

    def inputs(self, batch: Batch, rows: "Sequence[WantedRows]") -> Iterator[ModelBatch]:
        """Yield the network's inputs for a batch, SAMPLES at a time."""
        groups = [
            GroupRows([encode_rows(each.values, "float32")], each.unique.inverse, each.unique.offsets) for each in rows
        ]
        cuts = [slice(first, min(first + SAMPLES, batch.size)) for first in range(0, batch.size, SAMPLES)]
        samples = Samples(batch.dense, batch.labels, None, ())
        for part in self._staging.stage_parts(samples, groups, cuts) if cuts else []:
            yield model_batch(self._staging.poolings, part.rows, part.dense)

    def scores(self, inputs: ModelBatch) -> NDArray[np.float32]:
        """Return the logits float32 [n, tasks] of the network's inputs."""
        with torch.no_grad():
            logits: NDArray[np.float32] = self.network(inputs).float().numpy()
        return logits

    def reload(self, checkpoint: Location) -> None:
        """Load other dense weights of the same model and its correction, for a network that `corrects`."""
        other = load_network(self._run, checkpoint, corrects=True)
        with torch.no_grad():
            for name, weights in weights_by_name(other).items():
                weights_by_name(self.network)[name].copy_(weights)
        self._checkpoint, self._manifest = checkpoint, read_manifest(checkpoint)


class WantedRows:
    """The embeddings of one group's unique rows of a batch; zeros for those without a row."""

    def __init__(self, group: GroupSpec, unique: UniqueRows) -> None:
        self.unique = unique
        self.values = np.zeros((unique.keys.size, group.dim), np.float32)
        self._order = np.argsort(unique.keys, kind="stable")
        self._keys, self._tables = unique.keys[self._order], unique.tables[self._order]
        self._numbers = {table.name: table.number for table in group.tables}

    def take(
        self, names: list[str], keys: NDArray[np.uint64], tables: NDArray[np.uint16], embedding: NDArray[np.float32]
    ) -> None:
        """Take the wanted ones of rows in the order of keys; `tables` are positions in `names`."""
        if not keys.size:
            return
        known = np.array([self._numbers[name] for name in names], np.uint16)
        first = np.searchsorted(self._keys, keys[0], "left")
        wanted = np.arange(first, np.searchsorted(self._keys, keys[-1], "right"))
        place = np.searchsorted(keys, self._keys[wanted], "left")
        # Keys of two tables may be equal; then their rows are neighbours.
        for _ in range(len(known)):
            inside = place < keys.size
            wanted, place = wanted[inside], place[inside]
            same = keys[place] == self._keys[wanted]
            wanted, place = wanted[same], place[same]
            if not wanted.size:
                break
            hit = known[tables[place]] == self._tables[wanted]
            self.values[self._order[wanted[hit]]] = embedding[place[hit]]
            wanted, place = wanted[~hit], place[~hit] + 1
