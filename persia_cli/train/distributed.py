"""The NN workers of a job as one group: dense gradients summed over ranks, dense weights the same on all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from persia_cli.errors import ConfigError, WireError
from persia_cli.train.device import CPU


class LostRankError(WireError):
    """Another rank has ended or gives no sign of life; torch does not say which."""


class World:
    """One rank's place in the group of NN workers; a world of size 1 has no group and communicates nothing."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        rendezvous: Path | None = None,
        timeout_s: float = 30.0,
        device: torch.device = CPU,
    ) -> None:
        """Join the group and return once every rank has.

        `rendezvous` is a file that all ranks can reach and no earlier group has used. `timeout_s` bounds every wait
        for another rank, now and in each step. `device` holds this rank's network. Raises WireError if the others do
        not come.
        """
        self.rank, self.size, self.timeout_s, self.device = rank, size, timeout_s, device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if size == 1:
            return
        if rendezvous is None:
            raise ValueError("a world of several ranks needs a rendezvous file")
        # Left alone, gloo listens on whatever interface the name of the host resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        try:
            dist.init_process_group(
                self._backend(),
                init_method=f"file://{rendezvous.resolve()}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_s),
            )
        except RuntimeError as error:
            raise WireError(
                f"nn-worker-{rank} could not join the group of {size} NN workers in {timeout_s:g} s: {_first(error)}"
            ) from error

    def _backend(self) -> str:
        """Return nccl if every rank can have a GPU of its own, as nccl demands, else gloo."""
        return "nccl" if self.device.type == "cuda" and self.size <= torch.cuda.device_count() else "gloo"

    def any(self, condition: bool) -> bool:
        """Whether the condition holds on any rank; every rank asks at once."""
        if self.size == 1:
            return condition
        found = torch.tensor(float(condition), device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Give `module` the weights of rank 0 and let its backward sum gradients over ranks; buffers stay local.

        The loss is divided by the weight of the global batch already, so the sum, not DistributedDataParallel's mean,
        makes W ranks equal one. Raises ConfigError for a BatchNorm that would normalise each rank's samples alone.
        """
        if self.size == 1:
            return module
        refuse_local_statistics(module)
        with self.watched("sharing the initial dense weights"):
            on = None if self.device.type == "cpu" else [self.device]
            wrapped = DistributedDataParallel(module, device_ids=on, gradient_as_bucket_view=True)
            # Set here, because the constructor's argument for it differs between versions of torch.
            wrapped.broadcast_buffers = False
            wrapped.register_comm_hook(None, _sum_over_ranks)
        return wrapped

    @contextmanager
    def watched(self, doing: str) -> Iterator[None]:
        """Turn torch's errors about other ranks into a LostRankError that says what was being done."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not (isinstance(error, dist.DistError) or _names_a_backend(error)):
                raise
            raise LostRankError(
                f"nn-worker-{self.rank} failed {doing}: another NN worker has ended, or gave no sign of life for "
                f"{self.timeout_s:g} s ({_first(error)})"
            ) from error

    def close(self) -> None:
        """Leave the group; closing twice does nothing."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def refuse_local_statistics(module: nn.Module) -> None:
    """Raise ConfigError if `module` holds a BatchNorm that is not synchronised over ranks."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and not isinstance(part, nn.SyncBatchNorm):
            raise ConfigError(
                f"the model's layer {name or 'itself'} ({type(part).__name__}) normalises each rank's samples alone, "
                "so several NN workers would train another model than one; use torch.nn.LayerNorm, or set "
                "cluster.nn_workers=1"
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
