"""The whole model in one process with TorchRec's tables; `scripts/compare_torchrec.py` describes how to install it."""

import gc
from importlib import import_module
from typing import Any

import numpy as np
import torch

from persia_cli.bench.baselines.trainers import SPARE, DenseBaseline
from persia_cli.bench.machine import available_bytes
from persia_cli.bench.portions import Portion
from persia_cli.config.schema import Adagrad, RowwiseAdagrad, Run
from persia_cli.errors import UserError


class TorchRecBaseline(DenseBaseline):
    """An `EmbeddingBagCollection` whose backward also updates the rows, all tables in one kernel of FBGEMM.

    Sharded to one rank: with the same kernel, that takes less time than `FusedEmbeddingBagCollection`.
    """

    name = "torchrec"

    def __init__(self, run: Run, sizes: tuple[int, ...]) -> None:
        """Make the tables; raises UserError without TorchRec, for what its tables lack, and if they do not fit."""
        optimizer = run.optimizer.embedding
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
        self._ready = []
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
        place = plans.table_wise(rank=0, compute_kernel="fused")
        plan = plans.construct_module_sharding_plan(
            plain, dict.fromkeys(self._names, place), local_size=1, world_size=1, device_type="cpu"
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
            f"TorchRec cannot be imported ({error}): install it as scripts/compare_torchrec.py describes"
        ) from error
