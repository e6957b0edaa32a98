"""The number of replicas that suits one machine, for `cluster=auto`."""

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from persia_cli.cgroups import processors

GPU = Path("/dev/nvidia0")


def replicas_for(role: str, cores: int, has_gpu: bool) -> int:
    """Return the number of replicas of a role, such as `data_loaders`.

    A network on the CPU is the bottleneck, and every further process takes processor time from it: one of each. A GPU
    takes rows as fast as all other processors can give them. On 16 of them, 4 embedding servers and 3 embedding workers
    were fastest; the number of data loaders is a guess.
    """
    shares = {"data_loaders": 1 / 8, "embedding_workers": 3 / 16, "embedding_servers": 1 / 4, "nn_workers": 0}
    return max(1, int(cores * shares[role])) if has_gpu else 1


def trains_on_gpu(device: str, mode: str) -> bool:
    """Return True if NN workers of this machine use a GPU, as far as that can be known without torch.

    `device` and `mode` are `train.device` and `mode.kind`.
    """
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return mode != "async" and (device.startswith("cuda") or (device == "auto" and GPU.exists() and not is_hidden))


def register() -> None:
    """Make `${replicas:ROLE}` available to configuration files."""
    OmegaConf.register_new_resolver("replicas", _of_this_machine, replace=True)


def _of_this_machine(role: str, *, _root_: DictConfig) -> int:
    device = OmegaConf.select(_root_, "train.device", default="auto")
    mode = OmegaConf.select(_root_, "mode.kind", default="")
    return replicas_for(role, processors(), trains_on_gpu(str(device), str(mode)))
