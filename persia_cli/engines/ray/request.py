"""The request of a job to a Ray cluster: bundles of resources, and the replicas that use each."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from persia_cli.config.schema import RayCluster, Run
from persia_cli.engines.beside import beside
from persia_cli.engines.engine import settings_of
from persia_cli.engines.resources import GIB, resources_of
from persia_cli.engines.role_words import role_words
from persia_cli.plan.job import COORDINATOR, Replica, all_replicas

Amounts = Mapping[str, float]
"""Amounts of Ray's resources by their names; memory is in bytes."""
CPU, GPU, MEMORY = "CPU", "GPU", "memory"
STRATEGY = "SPREAD"
"""Bundles are on different machines where there are enough."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The reservation on one machine for replicas that exchange so much that they are to share its memory."""

    owner: Replica
    """The embedding server or NN worker whose machine the others share."""
    replicas: tuple[Replica, ...]
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class RayRequest:
    """The placement group of a job, and where in it each replica is. The coordinator is in none."""

    bundles: tuple[Bundle, ...]
    amounts: Mapping[Replica, Amounts]
    """Of each replica."""

    def bundle_of(self, replica: Replica) -> int:
        """Return the number of the replica's bundle."""
        return next(number for number, bundle in enumerate(self.bundles) if replica in bundle.replicas)


def request_of(run: Run) -> RayRequest:
    """Return what a job asks for: a bundle for each NN worker and each embedding server, with the replicas that
    `cluster.placement` puts on its machine, or one for all.
    """
    amounts = {replica: _amounts(run, replica.role) for replica in all_replicas(run) if replica.role != COORDINATOR}
    groups: dict[Replica, list[Replica]] = {}
    for replica in amounts:
        groups.setdefault(beside(run, replica), []).append(replica)
    bundles = tuple(
        Bundle(owner, tuple(each), _sum([amounts[replica] for replica in each])) for owner, each in groups.items()
    )
    return RayRequest(bundles, amounts)


def rendered(run: Run) -> str:
    """Return the request as YAML; what only the cluster knows is in capitals."""
    request = request_of(run)
    actors = [
        {
            "replica": replica.name,
            "bundle": request.bundle_of(replica),
            "options": options_of(amounts),
            "command": shlex.join(["persia", *_words(run, replica)]),
        }
        for replica, amounts in request.amounts.items()
    ]
    asked = {
        "address": settings_of(run, RayCluster).address or "auto",
        "placement_group": {
            "strategy": STRATEGY,
            "bundles": [dict(bundle.amounts) for bundle in request.bundles],
        },
        "actors": actors,
    }
    head = "# What the job asks Ray for. Each actor starts its command, whose standard input has the job's keys.\n"
    return head + yaml.safe_dump(asked, sort_keys=False, width=200).rstrip("\n")


def _words(run: Run, replica: Replica) -> list[str]:
    cpus = run.cluster.processors_of(replica.role, replica.index)
    return role_words(replica.role, replica.index, "tcp://HEAD:PORT", cpus=cpus)


def options_of(amounts: Amounts) -> dict[str, float]:
    """Return the resources of an actor as Ray's options name them."""
    return {"num_cpus": amounts[CPU], "num_gpus": amounts.get(GPU, 0), "memory": amounts[MEMORY]}


def why_no_room(request: RayRequest, machines: Sequence[Amounts], free: Amounts) -> str:
    """Return what a cluster lacks: a bundle for which no machine is large enough, or else what is taken.

    `machines` has all resources of each machine, `free` what is free of all together.
    """
    for bundle in request.bundles:
        if not any(_fits(bundle.amounts, machine) for machine in machines):
            names = ", ".join(replica.name for replica in bundle.replicas)
            largest = max(machines, key=lambda machine: machine.get(CPU, 0), default={})
            return (
                f"no machine is large enough for {names}, which need {in_words(bundle.amounts)} together; the largest "
                f"of {len(machines)} has {in_words(largest)}"
            )
    needed = _sum([bundle.amounts for bundle in request.bundles])
    return (
        f"the job needs {in_words(needed)} in {len(request.bundles)} bundles, and of {len(machines)} machines "
        f"{in_words(free)} are free"
    )


def in_words(amounts: Amounts) -> str:
    """Return amounts for people."""
    gpus = f"{amounts[GPU]:g} GPUs, " if amounts.get(GPU) else ""
    return f"{amounts.get(CPU, 0):g} CPUs, {gpus}{amounts.get(MEMORY, 0) / GIB:.1f} GiB"


def _amounts(run: Run, role: str) -> Amounts:
    needed = resources_of(run, role)
    return {CPU: needed.cpus, MEMORY: needed.memory, **({GPU: needed.gpus} if needed.gpus else {})}


def _sum(amounts: Sequence[Amounts]) -> Amounts:
    total: dict[str, Any] = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, 0) + amount
    return total


def _fits(wanted: Amounts, machine: Amounts) -> bool:
    return all(machine.get(name, 0) >= amount for name, amount in wanted.items())
