"""The NN workers of a job as one group: dense gradients summed over ranks, dense weights the same on all."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from persia_cli.errors import ConfigError, WireError
from persia_cli.model.batch_norm import LOCAL, SumOverRanks, share_statistics
from persia_cli.training.device import CPU

LOOPBACK = "lo"
_joined = False


def has_joined() -> bool:
    """Return whether this process has joined a group of ranks, now or before: torch then has separate threads."""
    return _joined


class LostRankError(WireError):
    """Raised when another rank has ended; torch does not name it."""


class World:
    """One rank's place in the group of NN workers; a world of size 1 has no group and communicates nothing."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        store: dist.Store | None = None,  # type: ignore[name-defined]
        timeout_s: float = 30.0,
        device: torch.device = CPU,
        uses_nccl: bool = False,
        interface: str = LOOPBACK,
        stuck_s: float = 900.0,
    ) -> None:
        """Join the group and return once every rank has.

        `store` is the store through which ranks meet, empty at first, and `interface` the network interface between
        them. Wait up to `timeout_s` seconds for the other ranks, and up to `stuck_s` in later operations: another rank
        may compile or compute for long. `device` is that of this rank's network; `uses_nccl`, the same on all ranks,
        is True if each has a separate GPU. Raise WireError if the others do not join.
        """
        self.rank, self.size, self.device = rank, size, device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if size == 1:
            return
        if store is None:
            raise ValueError("a world of several ranks needs a store to meet in")
        self._store = store  # torch does not hold a reference
        # By default, gloo listens on the interface to which the host's name resolves.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if interface != LOOPBACK:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        try:
            dist.init_process_group(
                # NCCL does not support ranks that share a GPU.
                "nccl" if uses_nccl else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_s),
            )
        except RuntimeError as error:
            raise WireError(
                f"nn-worker-{rank} could not join the group of {size} NN workers in {timeout_s:g} s: {_first(error)}"
            ) from error
        global _joined
        _joined = True
        _set_pg_timeout(timedelta(seconds=stuck_s))

    def rows_of_others(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows [m, k] that all other ranks give, in their order; all must call this together.

        `rows` [n, k] are this rank's; n may differ from rank to rank.
        """
        parts = self._rows_of_ranks(rows.detach())
        return torch.cat([part for rank, part in enumerate(parts) if rank != self.rank])

    def rows_of_all(self, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the rows of all ranks, in their order, and the position of this rank's first one; as `rows_of_others`.

        A gradient by them comes back to the rank that gave them, summed over ranks: in backward too, all ranks must
        come here together.
        """
        if self.size == 1:
            return rows, 0
        parts = self._rows_of_ranks(rows)
        return torch.cat(parts), sum(map(len, parts[: self.rank]))

    def _rows_of_ranks(self, rows: torch.Tensor) -> list[torch.Tensor]:
        sizes = torch.zeros(self.size, dtype=torch.int64, device=rows.device)
        sizes[self.rank] = len(rows)
        dist.all_reduce(sizes)
        # A sum, in which each rank has separate rows: gloo does not gather on GPUs.
        slots = rows.new_zeros(self.size, int(sizes.max()), rows.shape[1])
        slots[self.rank, : len(rows)] = rows
        slots = SumOverRanks.apply(slots)  # type: ignore[no-untyped-call]
        return [slots[rank, :size] for rank, size in enumerate(sizes.tolist())]

    def wrap(self, module: nn.Module) -> nn.Module:
        """Give `module` the weights of rank 0 and let its backward sum gradients over ranks; buffers stay local.

        Raise ConfigError for a BatchNorm that would normalise each rank's samples separately.
        """
        # The loss is divided by the weight of the global batch already. So the sum, not DistributedDataParallel's mean,
        # gives the same result on W ranks as on one.
        if self.size == 1:
            return module
        refuse_local_statistics(module)
        share_statistics(module, self.size)
        with self.watched("sharing the initial dense weights"):
            on = None if self.device.type == "cpu" else [self.device]
            wrapped = DistributedDataParallel(module, device_ids=on, gradient_as_bucket_view=True)
            # Set here, because the constructor's argument for it differs between versions of torch.
            wrapped.broadcast_buffers = False
            wrapped.register_comm_hook(None, _sum_over_ranks)
        return wrapped

    def no_sync(self, network: nn.Module) -> AbstractContextManager[None]:
        """Return the context of a forward and backward of `network`, from `wrap`, whose gradients stay on this rank.

        The next backward outside of it sums them over ranks, with its own.
        """
        return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()

    @contextmanager
    def watched(self, doing: str) -> Iterator[None]:
        """Turn torch's errors about other ranks into a LostRankError that names the operation."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not (isinstance(error, dist.DistError) or _names_a_backend(error)):
                raise
            raise LostRankError(
                f"nn-worker-{self.rank} failed {doing}: another NN worker has ended ({_first(error)})"
            ) from error

    def close(self) -> None:
        """Leave the group; closing twice does nothing."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def refuse_local_statistics(module: nn.Module) -> None:
    """Raise ConfigError if `module` has a BatchNorm that is not synchronised over ranks."""
    for name, part in module.named_modules():
        if isinstance(part, LOCAL):
            raise ConfigError(
                f"the model's layer {name or 'itself'} ({type(part).__name__}) normalises each rank's samples "
                "separately, so several NN workers would train another model than one; use torch.nn.LayerNorm or "
                "persia_cli.model.batch_norm.BatchNorm, or set cluster.nn_workers=1"
            )


def _names_a_backend(error: Exception) -> bool:
    return any(backend in str(error).lower() for backend in ("gloo", "nccl"))


def _first(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _sum_over_ranks(
    _: None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    summed: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
    return summed
