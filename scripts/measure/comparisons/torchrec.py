"""Samples per second of DLRM against TorchRec in one process, alternating on the same batches.

    python -m scripts.measure torchrec
    python -m scripts.measure torchrec --dims 16 --source loader -- train.threads=2 dataset.path=data/criteo

Persia is the default job on this machine. TorchRec has an `EmbeddingBagCollection` that fuses the backward pass with
Adagrad or row-wise Adagrad (FBGEMM on the CPU), in one process with the same network, loss and dense optimizer. The
batches have 4,096 samples of Criteo's shape: the prepared data, or those of its generator while that is missing. Tables
of dim 64 have a fourth, and of dim 128 an eighth of Criteo's rows, so that all take about 2 GiB. The ratio is the
median over rounds, each of two neighbouring turns.

TorchRec needs a separate environment, since it asks for another FBGEMM and another torchmetrics than it needs:

    python -m venv torchrec && . torchrec/bin/activate
    pip install -e . torch==2.13.0 tensordict tqdm pyre-extensions iopath
    pip install --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0
"""

import gc
import logging
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import torch

from persia_cli.bench.baselines import SPARE, DenseBaseline
from persia_cli.bench.compare import RING, compare
from persia_cli.bench.machine import available_bytes
from persia_cli.bench.portions import Portion, table_sizes
from persia_cli.bench.result import Result
from persia_cli.config.schema import Adagrad, RowwiseAdagrad, Run
from persia_cli.errors import UserError
from persia_cli.jobs.plan import settled_run
from persia_cli.observe.machine import this_processor
from scripts.measure import CRITEO, Given, Note

DIMS = (16, 64, 128)
OPTIMIZERS = ("adagrad", "rowwise_adagrad")
PRECISIONS = ("float32", "bfloat16")


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    fast = PRECISIONS if this_processor().has_bfloat16 else PRECISIONS[:1]
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS)
    parser.add_argument("--optimizers", nargs="+", default=OPTIMIZERS, choices=OPTIMIZERS)
    parser.add_argument("--precisions", nargs="+", default=fast, choices=PRECISIONS)
    parser.add_argument("--source", default="ring", choices=("ring", "loader"), help="ring: batches in memory")
    parser.add_argument("--steps", type=int, default=32, help="steps that a turn measures")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="other settings of both sides, after --")


def run_of(dim: int, optimizer: str, precision: str, overrides: Sequence[str]) -> Run:
    """Return the run that both sides train; `overrides` replace its settings."""
    sizes = [max(1, rows * DIMS[0] // dim) for rows in CRITEO] if dim > DIMS[0] else CRITEO
    return settled_run(
        [
            "conf=criteo",
            "cluster=local",
            "model=dlrm",
            f"model.dim={dim}",
            f"dataset.generator.cardinalities={[*sizes]}",
            f"optimizer={optimizer}",
            "train.batch_size=4096",
            f"train.precision={precision}",
            *overrides,
        ],
        [],
    )


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure one run after the other."""
    logging.disable(logging.WARNING)
    steps, ring = (4, 2) if given.quick else (given.steps, RING)
    for dim, optimizer, precision in product(given.dims, given.optimizers, given.precisions):
        run = run_of(dim, optimizer, precision, given.overrides)
        for result in compare(run, [TorchRecBaseline], [given.source], steps, given.rounds, note, ring):
            ours, theirs = result.sides
            ratios = [mine / other for mine, other in zip(ours.rates, theirs.rates, strict=True)]
            sides = [replace(ours, ratios={theirs.name: median(ratios)}), theirs]
            name = f"dim {dim}, {optimizer}, {precision}, {run.train.threads} threads, {given.source}"
            yield Result("", name, result.unit, sides, given.rounds, steps, f"{min(ratios):.3f} to {max(ratios):.3f} x")


class TorchRecBaseline(DenseBaseline):
    """An `EmbeddingBagCollection` whose backward also updates the rows, all tables in one kernel of FBGEMM.

    Sharded to one rank: with the same kernel, that takes less time than `FusedEmbeddingBagCollection`.
    """

    name = "torchrec"

    def __init__(self, run: Run) -> None:
        """Make the tables; raises UserError without TorchRec, for what its tables lack, and if they do not fit."""
        optimizer, sizes = run.optimizer.embedding, table_sizes(run)
        if not isinstance(optimizer, Adagrad | RowwiseAdagrad) or optimizer.l2 or optimizer.weight_decay:
            raise UserError(
                "TorchRec is compared with optimizer.embedding.kind=adagrad or rowwise_adagrad, without l2 and "
                "weight_decay"
            )
        if optimizer.initial_accumulator_value:
            raise UserError("TorchRec's sums begin at 0; leave out optimizer.embedding.initial_accumulator_value")
        self._torchrec = _imported()
        super().__init__(run)
        if self.device.type != "cpu" or self._dim % 4:
            raise UserError("TorchRec is compared on the CPU, with a model.dim that is a multiple of 4")
        states = self._dim if isinstance(optimizer, Adagrad) else 1
        needed, free = sum(sizes) * 4 * (self._dim + states), available_bytes()
        if needed > SPARE * free:
            raise UserError(
                f"TorchRec needs {needed / 2**30:.1f} GiB for {sum(sizes):,} rows and their optimizer, and "
                f"{free / 2**30:.1f} GiB of memory are free; set smaller dataset.generator.cardinalities"
            )
        self._embeddings = []
        kind = torch.optim.Adagrad if isinstance(optimizer, Adagrad) else self._torchrec.optim.RowWiseAdagrad
        self._collection = self._sharded(sizes, kind, {"lr": optimizer.rate, "eps": optimizer.eps})
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).reshape(-1, 1)
        most = run.train.batch * len(sizes)
        self._lengths, self._offsets = torch.ones(most, dtype=torch.int64), torch.arange(most + 1)

    def _sharded(self, sizes: tuple[int, ...], kind: Any, settings: dict[str, float]) -> Any:
        rec = self._torchrec
        distributed: Any = torch.distributed  # type checkers miss its HashStore
        tables = [
            rec.EmbeddingBagConfig(
                name=name,
                embedding_dim=self._dim,
                num_embeddings=rows,
                feature_names=[name],
                weight_init_min=-self._bound,
                weight_init_max=self._bound,
            )
            for name, rows in zip(self._names, sizes, strict=True)
        ]
        plain = rec.EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        rec.optim.apply_optimizer_in_backward(kind, plain.parameters(), settings)
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        plans = import_module("torchrec.distributed.sharding_plan")
        sharding = plans.table_wise(rank=0, compute_kernel="fused")
        plan = plans.construct_module_sharding_plan(
            plain, dict.fromkeys(self._names, sharding), local_size=1, world_size=1, device_type="cpu"
        )
        sharder = import_module("torchrec.distributed.embeddingbag").EmbeddingBagCollectionSharder()
        environment = rec.distributed.ShardingEnv.from_process_group(distributed.group.WORLD)
        return sharder.shard(plain, plan, environment, torch.device("cpu"))

    def close(self) -> None:
        """End the group of one process that TorchRec shards over."""
        torch.distributed.destroy_process_group()
        del self._collection
        gc.collect()  # the tables refer to the group, and to each other

    def weights(self) -> list[torch.Tensor]:
        """Return float32 [rows, dim] of each table, without a copy."""
        kernels = [kernel for lookup in self._collection._lookups for kernel in lookup._emb_modules]
        return [weights for kernel in kernels for weights in kernel.split_embedding_weights()]

    def prepare(self) -> None:
        """Set the number of threads; leave torch's other settings at their defaults."""
        torch.set_num_threads(self._threads)
        torch.set_deterministic_debug_mode("default")

    def embeddings(self, portion: Portion) -> torch.Tensor:
        """Look up the rows of a batch."""
        samples, features = portion.rows.shape
        # The ids of each table, in its order: 0.1 ms for 4,096 samples of 26 features.
        rows = np.ascontiguousarray(portion.rows.T)
        rows -= self._starts
        # All that TorchRec would otherwise compute from the lengths is given.
        ids = self._torchrec.KeyedJaggedTensor(
            keys=self._names,
            values=torch.from_numpy(rows).view(-1),
            lengths=self._lengths[: samples * features],
            offsets=self._offsets[: samples * features + 1],
            stride=samples,
            length_per_key=[samples] * features,
            offset_per_key=list(range(0, samples * features + 1, samples)),
        )
        pooled: torch.Tensor = self._collection(ids).values()
        return pooled.view(samples, features, self._dim)


def _imported() -> Any:
    try:
        for name in ("distributed.embeddingbag", "distributed.sharding_plan"):
            import_module(f"torchrec.{name}")
        return import_module("torchrec")
    except (ImportError, OSError) as error:
        raise UserError(
            f"TorchRec cannot be imported ({error}): install it as python -m scripts.measure torchrec --help describes"
        ) from error
