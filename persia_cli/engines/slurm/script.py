"""The script of a job, for sbatch."""

import math
import shlex
from collections.abc import Iterator
from pathlib import Path

from persia_cli.config.schema import Run, SlurmCluster
from persia_cli.engines.driver_input import NOTHING, configuration
from persia_cli.engines.driver_process import LOG
from persia_cli.engines.engine import settings_of
from persia_cli.engines.resumed import DRIVER
from persia_cli.engines.role_options import arguments_of
from persia_cli.engines.slurm.machines import (
    MachineKind,
    has_gpu_machines,
    machines_of,
    mebibytes,
    slots_of,
)
from persia_cli.engines.slurm.steps import persia_command, step_command
from persia_cli.errors import ConfigError
from persia_cli.plan.job import COORDINATOR
from persia_cli.version import __version__

SPARE_S = 60
"""Seconds, besides those in which the model is saved, for which the job is warned before its time is over."""
MOST_WARNED_S = 65_535
"""The most that sbatch takes for that warning (`--signal`)."""
END = "END_OF_CONFIGURATION"
HEAD = """\
#!/bin/bash
# The job {name}, made by persia {version}. It holds no secret: each start makes its own keys.
"""
IGNORED = "trap '' USR1  # nothing runs yet that could save; Persia lets it in again"
STEPS = """
# What follows runs the coordinator, and starts these steps, in a part of the machines each; their input is the job's
# keys. NODE stands for a machine, ADDRESS for the coordinator's.
"""


def script(run: Run, run_dir: Path) -> str:
    """Return the script of a job with this run directory; raises ConfigError for a job that has no use for machines."""
    settings = settings_of(run, SlurmCluster)
    _check_folder(run_dir.absolute())
    name = run_dir.absolute().name
    lines = [HEAD.format(name=name, version=__version__).rstrip("\n")]
    for number, kind in enumerate(machines_of(run)):
        lines += ["#SBATCH hetjob"] if number else []
        lines += [f"#SBATCH {option}" for option in _options(run, settings, name, number, kind)]
    lines += [STEPS.rstrip("\n"), *(f"#   {shlex.join(command)}" for command in _steps(run)), ""]
    log = run_dir.absolute() / DRIVER / LOG
    lines += [f"mkdir -p {shlex.quote(str(log.parent))} && exec >> {shlex.quote(str(log))} 2>&1", IGNORED]
    command = [*persia_command(run), "drive", "--scheduler", "slurm", "--run-dir", str(run_dir.absolute())]
    lines += [*settings.setup, f"exec {shlex.join([*command, 'resume=auto'])} << '{END}'"]
    # No keys, no credentials; sbatch would remove empty lines from the script of a heterogeneous job.
    return "\n".join([*lines, NOTHING, NOTHING, configuration(run).rstrip("\n"), END])


def _check_folder(run_dir: Path) -> None:
    text = str(run_dir)
    if not text.isprintable() or "%" in text or "\\" in text:
        raise ConfigError(
            f"the run directory {text!r}: Slurm takes no folder with control characters, % or backslashes; choose "
            "another --run-dir"
        )


def _minutes(run: Run, hours: float) -> int:
    """Return a time limit as sbatch takes it; raises ConfigError if the job would be warned before it trains."""
    minutes, warned_s = math.ceil(hours * 60), _warned_s(run)
    # Slurm may warn up to a minute too early.
    least = (warned_s + SPARE_S) // 60 + 1
    if minutes < least:
        raise ConfigError(
            f"cluster.hours={hours:g}: Slurm tells the job to save {warned_s} s before its time is over "
            f"(checkpoint.grace_s and a minute), or a minute before that; ask for at least {least} minutes"
        )
    return minutes


def _warned_s(run: Run) -> int:
    """Return how long before its end a job is warned; raises ConfigError for longer than Slurm can."""
    seconds = math.ceil(run.checkpoint.grace_s) + SPARE_S
    if seconds > MOST_WARNED_S:
        raise ConfigError(
            f"checkpoint.grace_s={run.checkpoint.grace_s:g}: Slurm warns a job at most {MOST_WARNED_S} s before its "
            f"time is over, and {SPARE_S} of them are to spare; use at most {MOST_WARNED_S - SPARE_S}"
        )
    return seconds


def _options(run: Run, settings: SlurmCluster, name: str, number: int, kind: MachineKind) -> Iterator[str]:
    """Yield the options of sbatch for machines of a kind."""
    yield f"--job-name={shlex.quote(name)}"
    if kind.partition is not None:
        yield f"--partition={kind.partition}"
    if settings.hours is not None:
        yield f"--time={_minutes(run, settings.hours)}"
    yield f"--nodes={kind.nodes}"
    yield "--ntasks-per-node=1"
    yield f"--cpus-per-task={kind.resources.cpus}"
    yield f"--mem={mebibytes(kind.resources.memory)}M"
    if kind.resources.gpus:
        yield f"--gres={settings.gpu}:{kind.resources.gpus}"
    yield from ("--requeue", "--no-kill")
    if not number:
        yield "--open-mode=append"
        # Python takes the place of the shell below, and so gets the signal.
        yield f"--signal=B:USR1@{_warned_s(run)}"
    yield from settings.options


def _steps(run: Run) -> Iterator[list[str]]:
    for replica, slot in slots_of(run).items():
        if replica.role != COORDINATOR:
            command = step_command(run, replica, slot.kind if has_gpu_machines(run) else None, "NODE")
            yield [*command, *arguments_of(run, replica, "tcp://ADDRESS:PORT")]
