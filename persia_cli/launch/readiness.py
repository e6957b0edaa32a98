"""Checks of this machine and of a user's code before any role of a job starts."""

from collections.abc import Sequence
from importlib.util import find_spec

from persia_cli.config.schema import AsyncMode, CustomModel, Run
from persia_cli.errors import ConfigError
from persia_cli.launch.machine import memory_bytes
from persia_cli.launch.torch_helper import ask_torch
from persia_cli.plan.job import JobPlan
from persia_cli.train.compiling import require_compiler

_SAME = {"name", "seed", "eval", "checkpoint"}
"""Parts of a run that do not affect its network."""


def require_ready(plans: Sequence[JobPlan]) -> None:
    """Raise ConfigError for the first job that needs more memory than this machine has, or has an invalid network.

    The plan has checked networks that ship with persia. A custom network, dense weights on servers and a CUDA device
    need torch to be checked; one other process imports it for all jobs. A saved model is not checked: it was trained.
    """
    memory = memory_bytes()
    runs: dict[str, Run] = {}
    for plan in plans:
        _require_memory(plan, memory)
        if plan.run.train.compile:
            require_compiler()
        if plan.job.task == "train" and _takes_torch(plan.run):
            runs.setdefault(plan.run.model_dump_json(exclude=_SAME), plan.run)
    if runs:
        _rehearse(list(runs.values()))


def require_network(plan: JobPlan) -> None:
    """Raise ConfigError if the network of a job cannot be trained, as far as the coordinator's machine can check.

    Other roles may run on other machines, so memory, compilers and devices are not checked here. Without torch on this
    machine nothing is checked.
    """
    if find_spec("torch") is not None:
        run = plan.run.model_copy(update={"train": plan.run.train.model_copy(update={"device": "cpu"})})
        if plan.job.task == "train" and _takes_torch(run):
            _rehearse([run])


def _require_memory(plan: JobPlan, memory: int) -> None:
    wanted = plan.memory
    if wanted <= memory:
        return
    embedding = plan.run.embedding
    key = f"embedding.memory={_gib(embedding.memory)}" if embedding.capacity is None else f"{_gib(wanted)} of rows"
    cause = "" if embedding.capacity is None else f" (embedding.capacity={embedding.capacity})"
    raise ConfigError(
        f"{key}{cause}: this machine has {_gib(memory)} for all processes together, which is too little for the rows; "
        f"give at most embedding.memory={_proposal(memory)}"
    )


def _takes_torch(run: Run) -> bool:
    return isinstance(run.model, CustomModel) or isinstance(run.mode, AsyncMode) or run.train.device.startswith("cuda")


def _rehearse(runs: Sequence[Run]) -> None:
    """Build and try the networks in another process; raises ConfigError with the first problem."""
    for refusal in ask_torch("persia_cli.train.rehearsal", runs):
        if refusal is not None:
            raise ConfigError(refusal)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _proposal(memory: int) -> str:
    """Return three quarters of the memory as a value of the key; processes, batches and the network need the rest."""
    return f"{memory * 3 // 4 // 2**30}GiB" if memory >= 2**31 else f"{memory * 3 // 4 // 2**20}MiB"
