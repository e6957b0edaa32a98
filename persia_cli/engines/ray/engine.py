"""The engine of `cluster=ray`: the request of a job, the connection to a Ray cluster, and an actor for each replica."""

import logging
import os
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from persia_cli.config.schema import RayCluster, Run
from persia_cli.engines.distributed import DistributedEngine
from persia_cli.engines.engine import settings_of
from persia_cli.engines.placement import GIB, owner_of, resources_of
from persia_cli.engines.ray.actor import Actor, ActorReplica
from persia_cli.engines.role_options import arguments_of
from persia_cli.errors import ConfigError, RoleError, UserError, one_line
from persia_cli.plan.job import COORDINATOR, JobPlan, Replica, all_replicas

SLICE_S = 1
"""Seconds for which Ray is waited for at once; signals are handled in between."""
SUBMITTED_BY_RAY = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable of a command that was given to `ray job submit`: it is in the cluster, with no terminal."""
CLIENT = "ray://"
REACHED_S = 10.0
MOST_SAID = 300
"""Characters of Ray's message about a failure."""
Amounts = Mapping[str, float]
"""Amounts of Ray's resources by their names; memory is in bytes."""
CPU, GPU, MEMORY = "CPU", "GPU", "memory"
STRATEGY = "SPREAD"
"""Bundles are on different machines where there are enough."""


class RayEngine(DistributedEngine):
    """An engine whose replicas are children of Ray's actors; its driver is on the command's machine."""

    extra = "ray"

    @contextmanager
    def machines(self, plan: JobPlan) -> Iterator["RayMachines"]:
        """Yield the machines of one start of a job; raises UserError if no Ray cluster lets this process in."""
        run = plan.run
        self.require_reachable(run)
        settings = settings_of(run, RayCluster)
        import ray
        from ray.exceptions import RayError

        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=settings.address or "auto", logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RayError, RuntimeError, ValueError) as error:
            where = f"at {settings.address} (cluster.address)" if settings.address else "here or at RAY_ADDRESS"
            raise UserError(
                f"no Ray cluster can be joined {where}; this machine has to be one of it (ray start), and to have its "
                f"token if it demands one (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN_PATH): {one_line(error)[:MOST_SAID]}"
            ) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # Ray has set its own handler, which exits
        try:
            yield RayMachines(run, settings)
        except RayError as error:
            raise RoleError(f"the Ray cluster fails: {one_line(error)[:MOST_SAID]}") from error
        finally:
            ray.shutdown()

    def drives_here(self, is_point: bool) -> bool:
        """Return whether Ray has started this command, or a sweep, which ends its points itself."""
        return is_point or SUBMITTED_BY_RAY in os.environ

    def rendered(self, run: Run, run_dir: Path | None) -> str:
        """Return the request to Ray as YAML; what only the cluster knows is in capitals."""
        request = request_of(run)
        actors = [
            {
                "replica": replica.name,
                "bundle": request.bundle_of(replica),
                "options": options_of(amounts),
                "command": shlex.join(["persia", *arguments_of(run, replica, "tcp://HEAD:PORT")]),
            }
            for replica, amounts in request.amounts.items()
        ]
        values = {
            "address": settings_of(run, RayCluster).address or "auto",
            "placement_group": {
                "strategy": STRATEGY,
                "bundles": [dict(bundle.amounts) for bundle in request.bundles],
            },
            "actors": actors,
        }
        head = "# What the job asks Ray for. Each actor starts its command, whose standard input has the job's keys.\n"
        return head + yaml.safe_dump(values, sort_keys=False, width=200).rstrip("\n")

    def submit(self, run: Run, run_dir: Path, overrides: Sequence[str]) -> str:
        """Start the driver as a process of this machine, which has to reach the Ray cluster."""
        self.require_reachable(run)
        return super().submit(run, run_dir, overrides)

    def require_reachable(self, run: Run) -> None:
        """Raise ConfigError unless Ray is installed, and listens where `cluster.address` says; Ray would try long."""
        self.require_installed()
        if address := settings_of(run, RayCluster).address:
            require_reachable(address)


def require_reachable(address: str) -> None:
    """Raise ConfigError unless something listens at the address of a cluster."""
    if address.startswith(CLIENT):
        raise ConfigError(
            f"cluster.address={address}: roles have to reach this process, and a Ray Client is outside of the "
            "cluster; give HOST:PORT on one of its machines, or use ray job submit -- persia train …"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"cluster.address={address}: expected HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), REACHED_S).close()
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"cluster.address={address}: no Ray cluster is reached there: {why}") from error


class RayMachines:
    """A cluster that this process has joined, and the resources of one start of a job in it."""

    def __init__(self, run: Run, settings: RayCluster) -> None:
        import ray

        self._ray = ray
        self._room_s = settings.start_timeout_s
        self._request: RayRequest = request_of(run)
        self._group: Any = None
        self.address: str = ray.util.get_node_ip_address()
        """Of this machine, for the cluster's other ones."""

    def prepare(self, say: Callable[[str], None], meanwhile: Callable[[], None]) -> None:
        """Wait for resources, calling `meanwhile` each second; raises RoleError that names what is missing.

        `say` is called with that too, if the job has to wait.
        """
        bundles = [dict(bundle.amounts) for bundle in self._request.bundles]
        self._group = self._ray.util.placement_group(bundles, strategy=STRATEGY)
        begin, is_reported = time.monotonic(), False
        while not self._group.wait(SLICE_S):
            if not is_reported:
                say(f"waiting for resources of the Ray cluster, at most {self._room_s:g} s: {self._why_no_room()}")
                is_reported = True
            meanwhile()
            if time.monotonic() - begin > self._room_s:
                raise RoleError(
                    f"the Ray cluster has had no space for the job for {self._room_s:g} s (cluster.start_timeout_s): "
                    f"{self._why_no_room()}"
                )

    def _why_no_room(self) -> str:
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return why_no_room(self._request, machines, self._ray.available_resources())

    def start(self, replica: Replica, arguments: list[str], given: str, log: Path) -> ActorReplica:
        """Start a replica by a new actor in its bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = PlacementGroupSchedulingStrategy(self._group, self._request.bundle_of(replica))
        options = options_of(self._request.amounts[replica])
        remote = self._ray.remote(max_restarts=0, max_concurrency=1)(Actor)
        actor = remote.options(**options, scheduling_strategy=bundle).remote()
        return ActorReplica(actor, arguments, given, log, self._ray.kill)


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
        groups.setdefault(owner_of(run, replica), []).append(replica)
    bundles = tuple(
        Bundle(owner, tuple(group), _sum([amounts[replica] for replica in group])) for owner, group in groups.items()
    )
    return RayRequest(bundles, amounts)


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
                f"no machine is large enough for {names}, which need {readable(bundle.amounts)} together; the largest "
                f"of {len(machines)} has {readable(largest)}"
            )
    needed = _sum([bundle.amounts for bundle in request.bundles])
    return (
        f"the job needs {readable(needed)} in {len(request.bundles)} bundles, and of {len(machines)} machines "
        f"{readable(free)} are free"
    )


def readable(amounts: Amounts) -> str:
    """Return amounts for people."""
    gpus = f"{amounts[GPU]:g} GPUs, " if amounts.get(GPU) else ""
    return f"{amounts.get(CPU, 0):g} CPUs, {gpus}{amounts.get(MEMORY, 0) / GIB:.1f} GiB"


def _amounts(run: Run, role: str) -> Amounts:
    needed = resources_of(run, role)
    return {CPU: needed.cpus, MEMORY: needed.memory, **({GPU: needed.gpus} if needed.gpus else {})}


def _sum(amounts: Sequence[Amounts]) -> Amounts:
    total: dict[str, Any] = {}
    for one in amounts:
        for name, amount in one.items():
            total[name] = total.get(name, 0) + amount
    return total


def _fits(wanted: Amounts, machine: Amounts) -> bool:
    return all(machine.get(name, 0) >= amount for name, amount in wanted.items())
