"""Checks of this machine and of a user's code before any role of a job starts."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import msgspec

from persia_cli.cgroups import memory_bytes
from persia_cli.config.schema import AsyncMode, CustomModel, Run
from persia_cli.engines.affinity import processors_here
from persia_cli.engines.key_files import require_given_keys
from persia_cli.engines.processes import python_module
from persia_cli.errors import ConfigError
from persia_cli.plan.job import JobPlan
from persia_cli.plan.pinning import require_processors
from persia_cli.plan.warm_start import DenseFit
from persia_cli.training.compiling import require_compiler

_SAME = {"name", "seed", "eval", "checkpoint"}
"""Parts of a run that do not affect its network."""
_TAIL_LINES = 3


def require_ready(plans: Sequence[JobPlan]) -> None:
    """Raise UserError for the first job whose file of keys is of no use, that needs more memory than this machine has,
    or processors that it does not have, or has an invalid network.

    The plan has checked networks that ship with persia. A custom network, dense weights on servers and a CUDA device
    need torch to be checked; one other process imports it for all jobs. A saved model is not checked: it was trained.
    """
    memory, processors = memory_bytes(), processors_here()
    runs: dict[str, Run] = {}
    for plan in plans:
        require_given_keys(plan.run.cluster)
        _require_memory(plan, memory)
        if plan.run.cluster.has_processes_here:
            for replica in plan.replicas:
                require_processors(plan.run, replica, processors)
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
        train = plan.run.train
        plain = {"device": "cpu", "graphs": "auto"} | ({"precision": "float32"} if train.precision == "tf32" else {})
        run = plan.run.model_copy(update={"train": train.model_copy(update=plain)})
        if plan.job.task == "train" and _takes_torch(run):
            _rehearse([run])


def with_dense_fit(plan: JobPlan) -> JobPlan:
    """Return the plan with the dense weights that a new run takes from a saved model; another process compares them.

    Without torch on this machine they stay unknown. Raises ConfigError for a network or weights that cannot be read.
    """
    warm, source = plan.job.warm, plan.run.init_from
    if warm is None or source is None or not warm.dense or find_spec("torch") is None:
        return plan
    changed = plan.run.model_copy(update={"init_from": source.model_copy(update={"path": warm.checkpoint})})
    (fit,) = ask_torch("fit", [changed])
    if isinstance(fit, str):
        raise ConfigError(fit)
    fit = msgspec.convert(fit, DenseFit)
    return replace(plan, job=replace(plan.job, warm=replace(warm, fit=fit)))


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
    train = run.train
    needs_gpu = train.device.startswith("cuda") or train.graphs == "on" or train.precision == "tf32"
    return needs_gpu or isinstance(run.model, CustomModel) or isinstance(run.mode, AsyncMode)


def _rehearse(runs: Sequence[Run]) -> None:
    """Build and try the networks in another process; raises ConfigError with the first problem."""
    for refusal in ask_torch("refusal", runs):
        if refusal is not None:
            raise ConfigError(refusal)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _proposal(memory: int) -> str:
    """Return three quarters of the memory as a value of the key; processes, batches and the network need the rest."""
    return f"{memory * 3 // 4 // 2**30}GiB" if memory >= 2**31 else f"{memory * 3 // 4 // 2**20}MiB"


def ask_torch(question: str, runs: Sequence[Run]) -> Any:
    """Return the JSON answers of `persia_cli.rehearsal.questions`; raises ConfigError if it fails or takes too long."""
    limit_s = runs[0].cluster.start_timeout_s
    given = json.dumps([run.model_dump(mode="json") for run in runs])
    what = f"model.file={runs[0].model.file}" if isinstance(runs[0].model, CustomModel) else "the dense network"
    try:
        command = [*python_module("persia_cli.rehearsal.questions"), question]
        ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{what}: building it and trying it on two samples took longer than cluster.start_timeout_s={limit_s:g}"
        ) from None
    if ended.returncode:
        lines = "\n".join(f"  {line}" for line in ended.stderr.splitlines()[-_TAIL_LINES:])
        raise ConfigError(f"{what}: building it ended the process with exit code {ended.returncode}\n{lines}".rstrip())
    return json.loads(ended.stdout)
