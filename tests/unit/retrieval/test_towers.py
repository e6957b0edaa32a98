"""The vectors of users and of items, each computed alone and users ragged, are those of the whole padded network."""

from itertools import chain

import numpy as np
import pytest
import torch

from persia_cli.config.compose import compose_run
from persia_cli.data.read.batch import Batch, assemble
from persia_cli.model.build import build_model
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout
from persia_cli.retrieval.towers import SEQUENCES, Towers
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.training.device import CPU
from persia_cli.training.inputs import Samples, group_shapes
from persia_cli.training.pooling import Staging, model_batch
from persia_cli.wire.messages import GroupRows

DIM, LONGEST, SAMPLES = 8, 12, 3 * SEQUENCES + 5
ATTEND = "model.attend={film: [before]}"
NETWORKS = {
    "sasrec": ["model=sasrec", ATTEND],
    "ligr": ["model=ligr", ATTEND],
    "hstu": ["model=hstu", ATTEND],
    "several rows per id": ["model=sasrec", ATTEND, "embedding.tables.film.hash_stack={rounds: 2, size: 500}"],
    "two_tower": ["model=two_tower", "model.user=[before]", "model.item=[film]", "model.hidden=[8]", "model.width=5"],
}


def batch_of(draw: np.random.Generator) -> Batch:
    """Samples with a film after lists of any length, none and too long ones included."""
    lists = [draw.integers(0, 300, length) for length in draw.integers(0, 2 * LONGEST, SAMPLES)]
    empty, labels = np.empty((SAMPLES, 0), np.float32), np.ones((SAMPLES, 1), np.float32)
    ids = [draw.integers(0, 300, SAMPLES).astype(np.uint64), np.array([*chain(*lists)], np.uint64)]
    return assemble(empty, labels, None, ids, [None, np.cumsum([0, *map(len, lists)])])


@pytest.mark.parametrize("kind", NETWORKS)
def test_they_are_those_of_the_padded_network(kind: str) -> None:
    pooling = "mean" if kind == "two_tower" else "none"
    run = compose_run(
        [
            *("conf=base", "dataset=parquet", "dataset.path=nowhere", "dataset.labels=[label]", "dataset.dense=[]"),
            "dataset.split={kind: files, train: [a], eval: [b]}",
            f"dataset.sparse=[film, {{name: before, table: film, pooling: {pooling}, max_length: {LONGEST}}}]",
            *(*NETWORKS[kind], f"model.dim={DIM}", "train.batch_size=32"),
        ]
    )
    layout = embedding_layout(run)
    planner, asked = RowPlanner(layout, 1), []

    def rows_of(batch: Batch) -> list[GroupRows]:
        asked.append(batch.ids.size)
        planned = planner.plan(batch.ids, batch.offsets, batch.size)
        rows = [np.sin(unique.keys[:, None] % 1000 * np.arange(1.0, DIM + 1)).astype(np.float32) for unique in planned]
        return [
            GroupRows([each.view(np.uint8)], unique.inverse, unique.offsets)
            for each, unique in zip(rows, planned, strict=True)
        ]

    network = build_model(run.model, input_shape(run, layout), 0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    batch = batch_of(np.random.default_rng(3))
    towers = Towers(run, network, CPU, rows_of)
    users, items = towers.users(batch), towers.items(batch)

    staging = Staging(group_shapes(layout), CPU, by_kernels=True)
    whole = batch.newest([None, LONGEST])
    staged = staging.stage(Samples(whole.dense, whole.labels, None, ()), rows_of(whole))
    padded = model_batch(staging.poolings, staged.rows, staged.dense)
    with torch.no_grad():
        assert users == pytest.approx(network.users(padded).numpy(), abs=1e-6)
        assert items == pytest.approx(network.items(padded).numpy(), abs=1e-6)
    assert np.unique(users.round(4), axis=0).shape[0] > SAMPLES / 2
    assert asked[0] + asked[1] == asked[2] == whole.ids.size, "no id is requested for the other side"
