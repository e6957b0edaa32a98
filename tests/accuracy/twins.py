"""Plain-torch twins: the accuracy of a network if torch alone reads the data, stores the rows and trains.

A twin shares with a job of persia the network's class and the order of samples for a seed, and nothing else: it reads
the original text files itself, stores all rows in one `nn.Embedding` and has its own loop. Both train one epoch with
the same settings. (With different orders the comparison would mean little: AUC moves by 0.002 with the order alone.)
For every network that ships and several seeds, after `persia recipe prepare criteo`:

    python -m tests.accuracy.twins --criteo criteo_kaggle_mix.tsv.gz --prepared data/criteo --movielens ml-100k
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn
from torchmetrics.functional.classification import binary_auroc

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Model
from persia_cli.data.read.order import BlockSize, SampleOrder
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.outputs import Output, split_output
from persia_cli.model.shape import FeatureShape, InputShape
from tests.support.jobs import evaluation, train

BATCH, ROWS_LR, DENSE_LR, INIT_BOUND = 512, 0.05, 1e-3, 0.01
"""Settings of all jobs: samples of a step, Adagrad of rows, Adam of dense weights, initial rows."""
HISTORY = 20
"""Maximum number of liked films before, as the sequence of a MovieLens sample."""
ON_CRITEO = (
    "ffnn",
    "dlrm",
    "wide_deep",
    "deepfm",
    "xdeepfm",
    "dcn_v2",
    "dcn_v2_mix",
    "autoint",
    "finalmlp",
    "mmoe",
)
ON_MOVIELENS = ("din",)


@dataclass(frozen=True)
class Samples:
    """N samples; every fifth one, from number 4, is for evaluation.

    `dense` float32 [N, D]; `ids` int64 [N, F], rows of the one table, and `names` of these features; `sequences` int64
    [N, length] by name, -1 for padding; `labels` float32 [N]; `rows` of the table.
    """

    dense: torch.Tensor
    names: tuple[str, ...]
    ids: torch.Tensor
    sequences: dict[str, torch.Tensor]
    labels: torch.Tensor
    rows: int

    def shape(self, dim: int) -> InputShape:
        """Return the input shape of a network."""
        pooled = [FeatureShape(name, dim, "sum") for name in self.names]
        padded = [FeatureShape(name, dim, "none", ids.shape[1]) for name, ids in self.sequences.items()]
        return InputShape(self.dense.shape[1], (*pooled, *padded), 1)


def read_criteo(file: Path) -> Samples:
    """Read the challenge's text file: log(1 + max(x, 0)) of a count, 0 if missing; a missing category is one too."""
    table = pd.read_csv(file, sep="\t", header=None, dtype=dict.fromkeys(range(14, 40), "str"))
    dense = np.log1p(table[list(range(1, 14))].fillna(0).clip(lower=0).to_numpy(np.float32))
    columns, rows = [], 0
    for number in range(14, 40):
        codes, found = pd.factorize(table[number], use_na_sentinel=False)
        columns.append(codes.astype(np.int64) + rows)
        rows += len(found)
    names = tuple(f"C{number}" for number in range(1, 27))
    labels = torch.from_numpy(table[0].to_numpy(np.float32))
    return Samples(torch.from_numpy(dense), names, torch.from_numpy(np.stack(columns, axis=1)), {}, labels, rows)


def read_movielens(folder: Path) -> pd.DataFrame:
    """Read MovieLens 100k in order of time: user, item, whether four stars or more, and up to 20 items liked before."""
    ratings = pd.read_csv(folder / "u.data.gz", sep="\t", names=["user", "item", "stars", "time"])
    ratings = ratings.sort_values("time", kind="stable", ignore_index=True)
    liked: dict[int, list[int]] = {}
    last_items = []
    for user, item, stars in ratings[["user", "item", "stars"]].itertuples(index=False):
        before = liked.setdefault(user, [])
        last_items.append(before[-HISTORY:])
        if stars >= 4:
            before.append(item)
    label = (ratings["stars"] >= 4).astype(np.int8)
    return ratings[["user", "item"]].assign(last_items=last_items, label=label)


def movielens_samples(table: pd.DataFrame) -> Samples:
    """Return the samples of `read_movielens`; items and items liked before have the same rows."""
    users = int(table["user"].max()) + 1
    ids = np.stack([table["user"], table["item"] + users], axis=1).astype(np.int64)
    padded = np.full((len(table), HISTORY), -1, np.int64)
    for row, items in enumerate(table["last_items"]):
        padded[row, : len(items)] = np.array(items, np.int64) + users
    return Samples(
        torch.empty(len(table), 0),
        ("user", "item"),
        torch.from_numpy(ids),
        {"last_items": torch.from_numpy(padded)},
        torch.from_numpy(table["label"].to_numpy(np.float32)),
        users + int(table["item"].max()) + 1,
    )


class Twin:
    """A network and its rows, trained by torch alone."""

    def __init__(self, model: Model, samples: Samples, seed: int) -> None:
        self.samples = samples
        self.seed = seed
        self.rows = nn.Embedding(samples.rows, model.dim)
        nn.init.uniform_(self.rows.weight, -INIT_BOUND, INIT_BOUND, torch.Generator().manual_seed(seed))
        self.network = build_model(model, samples.shape(model.dim), seed)
        self.optimizers = [
            torch.optim.Adagrad(self.rows.parameters(), lr=ROWS_LR),
            torch.optim.Adam(self.network.parameters(), lr=DENSE_LR),
        ]

    def output(self, which: torch.Tensor) -> Output:
        """Return the logits of these samples, and in training auxiliary losses if the network has some."""
        samples = self.samples
        sequences = {}
        for name, ids in samples.sequences.items():
            mask = ids[which] >= 0
            sequences[name] = (self.rows(ids[which].clamp(min=0)) * mask.unsqueeze(2), mask)
        batch = ModelBatch(samples.dense[which], [self.rows(samples.ids[which])], [samples.names], sequences)
        output: Output = self.network(batch)
        return output

    def auc(self) -> float:
        """Train one epoch; return the AUC of the evaluation samples."""
        numbers = torch.arange(len(self.samples.labels))
        self.network.train()
        for which in in_order(numbers[numbers % 5 != 4], self.seed).split(BATCH):
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            labels = self.samples.labels[which]
            logits, auxiliary = split_output(self.output(which))
            loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels)
            (loss if auxiliary is None else loss + auxiliary.mean()).backward()
            for optimizer in self.optimizers:
                optimizer.step()
        self.network.eval()
        others = numbers[numbers % 5 == 4]
        with torch.no_grad():
            scores = torch.cat([split_output(self.output(which))[0][:, 0] for which in others.split(BATCH)])
        return float(binary_auroc(scores, self.samples.labels[others].int()))


def in_order(rows: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the rows of a file of one row group in the order of the first epoch."""
    order = SampleOrder([len(rows)], BlockSize(), shuffle=True, seed=seed)
    [block] = order.blocks(0)
    return rows[np.argsort(order.places(0, block))]


@dataclass(frozen=True)
class Compared:
    """AUC by seed of a job of persia and of its twin."""

    model: str
    persia: NDArray[np.float64]
    twin: NDArray[np.float64]

    @property
    def difference(self) -> float:
        """Mean of persia minus mean of the twin."""
        return float(self.persia.mean() - self.twin.mean())


def criteo_words(prepared: Path) -> list[str]:
    """Return the arguments of a job on prepared Criteo rows."""
    return [
        "conf=criteo",
        f"dataset.path='{prepared}'",
        "dataset.split={kind: every, n: 5, offset: 4}",
        "embedding.memory=1GiB",
    ]


def movielens_words(table: pd.DataFrame, folder: Path) -> list[str]:
    """Write MovieLens samples into a folder and return the arguments of a job on them."""
    table.to_parquet(folder / "movielens.parquet", index=False)
    last_items = f"{{name: last_items, table: item, pooling: none, max_length: {HISTORY}}}"
    return [
        "dataset=parquet",
        f"dataset.path='{folder}'",
        "dataset.labels=[label]",
        f"dataset.sparse=[user, item, {last_items}]",
        "dataset.split={kind: every, n: 5, offset: 4}",
        "model.attend={item: [last_items]}",
    ]


def compare(model: str, words: Sequence[str], samples: Samples, seeds: Sequence[int], folder: Path) -> Compared:
    """Train a network by persia, in sync mode, and by its twin, with each seed."""
    words = [
        f"model={model}",
        *words,
        "optimizer=mixed",
        f"optimizer.embedding.lr={ROWS_LR}",
        f"optimizer.dense.lr={DENSE_LR}",
        f"embedding.init_bound={INIT_BOUND}",
        f"train.batch_size={BATCH}",
        "train.epochs=1",
        "mode=sync",
        "cluster=embedded",
        "checkpoint.at_end=false",
    ]
    # Torch gets as many threads as a rank has.
    torch.set_num_threads(1)
    persia = [evaluation(train([*words, f"seed={seed}"], folder / f"{model}-{seed}"))["auc"] for seed in seeds]
    twin = [Twin(compose_run(words).model, samples, seed).auc() for seed in seeds]
    return Compared(model, np.array(persia), np.array(twin))


def main() -> None:
    """Print the table, a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--criteo", type=Path, required=True, help="the original text file")
    parser.add_argument("--prepared", type=Path, required=True, help="the output of persia recipe prepare criteo")
    parser.add_argument("--movielens", type=Path, required=True, help="the folder of MovieLens 100k")
    parser.add_argument("--models", nargs="*", default=[*ON_CRITEO, *ON_MOVIELENS])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    criteo, films = read_criteo(given.criteo), read_movielens(given.movielens)
    print("| network | data | persia, sync | plain torch | difference |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in given.models:
            on_films = model in ON_MOVIELENS
            samples = movielens_samples(films) if on_films else criteo
            words = movielens_words(films, Path(folder)) if on_films else criteo_words(given.prepared)
            found = compare(model, words, samples, range(given.seeds), Path(folder))
            data = "MovieLens 100k" if on_films else "Criteo rows"
            means = f"{found.persia.mean():.4f} ± {found.persia.std(ddof=1):.4f} | "
            means += f"{found.twin.mean():.4f} ± {found.twin.std(ddof=1):.4f}"
            print(f"| {model} | {data} | {means} | {found.difference:+.4f} |", flush=True)


if __name__ == "__main__":
    main()
