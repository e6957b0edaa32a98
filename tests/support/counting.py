"""A job whose model counts the updates of each row.

The network has the gradient 1 for every row and sample, and rows begin at 0. So with plain SGD and a rate of 1 a row's
value is its number of updates in samples.
"""

from pathlib import Path

from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import checkpoint_folder, finished_steps, read_manifest
from persia_cli.store.checkpoints.saved_rows import saved_rows
from tests.support.small import STEPS, WORDS

ONES = """
import torch
from torch import nn


class Ones(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        ctx.shape = rows.shape
        return rows.new_zeros(rows.shape[0], 1)

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones(ctx.shape)
"""
"""A function of rows with the gradient 1 for every value."""
NETWORK = f"""{ONES}

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        return Ones.apply(batch.concatenated(self.shape.pooled)) + 0.0 * self.bias
"""
BATCH, RANKS, LONG = 32, 2, 2 * STEPS
ALONE = 6
"""Tables of one id, which every sample has."""
SMALL = [
    *WORDS,
    "mode=hybrid",
    "mode.staleness=4",
    "optimizer=sgd",
    "optimizer.embedding.lr=1",
    "optimizer.embedding.schedule={kind: constant, warmup_steps: 0}",
    "embedding.init_bound=0",
    f"dataset.generator.cardinalities={[1] * ALONE + [300]}",
    f"dataset.generator.train_rows={BATCH * LONG}",
    "train.log_every_steps=5",
    "cluster=local",
    f"cluster.nn_workers={RANKS}",
    "cluster.embedding_workers=2",
    "cluster.embedding_servers=2",
    "embedding.capacity=2_000_000",
    "checkpoint.every_steps=50",
    "checkpoint.keep=2",
]


def counting(folder: Path) -> list[str]:
    """Return the job's arguments, with a network that counts."""
    (folder / "network.py").write_text(NETWORK)
    return [*SMALL, f"model={{kind: custom, dim: 4, file: {folder / 'network.py'}, name: Net, args: {{}}}}"]


def missed_by_rows(checkpoints: Location, steps: int = LONG) -> dict[str, set[int]]:
    """Return the numbers of updates that the rows of the tables of one id have missed, by the last checkpoint."""
    folder = checkpoint_folder(checkpoints, finished_steps(checkpoints)[-1])
    rows = [
        (file.rows.first > 0, row)
        for file in saved_rows(folder, read_manifest(folder), with_dense=False)
        for batch in file.batches()
        for row in batch.to_pylist()
        if row["table"] != f"feature_{ALONE}"
    ]
    assert len(rows) == ALONE
    missed: dict[str, set[int]] = {"embedding-server-0": set(), "embedding-server-1": set()}
    for on_second, row in rows:
        [value] = set(row["embedding"])
        updates, rest = divmod(-value, BATCH // RANKS)
        assert rest == 0, row
        missed[f"embedding-server-{int(on_second)}"].add(RANKS * steps - int(updates))
    assert all(missed.values()), "each server has such a row"
    return missed
