"""The command by which a replica becomes a step of a job."""

import shlex
from dataclasses import replace
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.engines.resources import resources_of
from persia_cli.engines.role_words import Placed, role_words
from persia_cli.engines.slurm.machines import mebibytes, settings_of
from persia_cli.errors import ConfigError
from persia_cli.plan.job import COORDINATOR, Replica
from persia_cli.plan.pinning import numbers

ROOM_S = 60
"""Seconds that a step waits for the processors of the one before it."""


def step_command(run: Run, replica: Replica, group: int | None, node: str, at: Placed) -> list[str]:
    """Return the command that runs a replica on a machine of the job; its standard input has the job's keys.

    `group` is the machine's component, if the job is heterogeneous.
    """
    each = resources_of(run, replica.role)
    command = ["srun", *([] if group is None else [f"--het-group={group}"]), f"--job-name={replica.name}"]
    command += [f"--nodelist={node}", "--nodes=1", "--ntasks=1"]
    # All that a step is not given exactly is every processor and all the memory of its machine, and the next one waits.
    command += ["--exact", f"--cpus-per-task={each.cpus}", f"--mem={mebibytes(each.memory)}M"]
    if each.gpus:
        command += [f"--gres={settings_of(run).gpu}:{each.gpus}"]
    elif group is None and resources_of(run, "nn-worker").gpus:
        command += ["--gres=none"]
    # The loss of one machine, or the end of one replica, is nothing to the others: the coordinator decides.
    command += ["--no-kill", "--kill-on-bad-exit=0", f"--immediate={ROOM_S}", "--mpi=none"]
    pinned = run.cluster.processors_of(replica.role, replica.index)
    _require_room(replica, pinned, each.cpus)
    at = replace(at, cpus=pinned)
    return [*command, *persia_words(run), *_words(replica, at)]


def _require_room(replica: Replica, pinned: str | None, cpus: int) -> None:
    """Raise ConfigError if a replica is pinned to more numbered processors than its step is given."""
    processors = numbers(pinned) if pinned and "node" not in pinned else frozenset[int]()
    if len(processors) > cpus:
        key = replica.role.replace("-", "_")
        raise ConfigError(
            f"cluster.pin.{key}={pinned} for {replica.name} are {len(processors)} processors, and Slurm gives it "
            f"{cpus}; set cluster.resources.{key}.cpus={len(processors)}, or pin it to fewer"
        )


def persia_words(run: Run) -> list[str]:
    """Return the command that runs Persia, with the home folder in the place of a tilde."""
    first, *others = shlex.split(settings_of(run).persia)
    return [str(Path(first).expanduser()) if first.startswith("~") else first, *others]


def _words(replica: Replica, at: Placed) -> list[str]:
    words = role_words(replica.role, replica.index, at)
    return [*words, "resume=auto"] if replica.role == COORDINATOR else words
