"""The engine of `cluster=ray`: the connection to a Ray cluster, resources for a job in it, and its actors."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from persia_cli.config.schema import RayCluster, Run
from persia_cli.engines.configuration import configuration, keys_of_job
from persia_cli.engines.distributed import DistributedEngine
from persia_cli.engines.driver_process import start_driver
from persia_cli.engines.engine import settings_of
from persia_cli.engines.handed_over import text_of
from persia_cli.engines.ray.place import Actor, ActorPlace
from persia_cli.engines.ray.request import STRATEGY, RayRequest, options_of, rendered, request_of, why_no_room
from persia_cli.errors import ConfigError, RoleError, UserError, one_line
from persia_cli.plan.job import JobPlan, Replica

SLICE_S = 1
"""Seconds for which Ray is waited for at once; signals are handled in between."""
SUBMITTED_BY_RAY = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable of a command that was given to `ray job submit`: it is in the cluster, with no terminal."""
CLIENT = "ray://"
REACHED_S = 10.0
MOST_SAID = 300
"""Characters of Ray's message about a failure."""


class RayEngine(DistributedEngine):
    """An engine whose replicas are children of Ray's actors; its driver is on the command's machine."""

    extra = "ray"
    driver_is_here = True

    def machines(self, plan: JobPlan) -> AbstractContextManager["RayMachines"]:
        """Enter the machines of one start of a job; raises UserError if no Ray cluster lets this process in."""
        self.require_reachable(plan.run)
        return machines(plan.run)

    def is_inside(self, is_point: bool) -> bool:
        """Return whether Ray has started this command, or a sweep, which ends its points itself."""
        return is_point or SUBMITTED_BY_RAY in os.environ

    def rendered(self, run: Run, run_dir: Path | None) -> str:
        """Return what Ray is asked for."""
        return rendered(run)

    def submit(self, run: Run, run_dir: Path, overrides: Sequence[str]) -> str:
        """Start the driver as a process of this machine."""
        self.require_reachable(run)
        start_driver(run_dir, overrides, text_of(keys_of_job(), configuration(run)))
        return "another process runs the job"

    def require_reachable(self, run: Run) -> None:
        """Raise ConfigError unless Ray is installed, and listens where `cluster.address` says; Ray would try long."""
        self.require_installed()
        if address := settings_of(run, RayCluster).address:
            require_reachable(address)


@contextmanager
def machines(run: Run) -> Iterator["RayMachines"]:
    """Yield the machines of one start of a job; raises UserError if no Ray cluster lets this process in."""
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
        begin, is_told = time.monotonic(), False
        while not self._group.wait(SLICE_S):
            if not is_told:
                say(f"waiting for resources of the Ray cluster, at most {self._room_s:g} s: {self._why_no_room()}")
                is_told = True
            meanwhile()
            if time.monotonic() - begin > self._room_s:
                raise RoleError(
                    f"the Ray cluster has had no space for the job for {self._room_s:g} s (cluster.start_timeout_s): "
                    f"{self._why_no_room()}"
                )

    def _why_no_room(self) -> str:
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return why_no_room(self._request, machines, self._ray.available_resources())

    def start(self, replica: Replica, words: list[str], given: str, log: Path) -> ActorPlace:
        """Start a replica by a new actor in its bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = PlacementGroupSchedulingStrategy(self._group, self._request.bundle_of(replica))
        options = options_of(self._request.amounts[replica])
        remote = self._ray.remote(max_restarts=0, max_concurrency=1)(Actor)
        actor = remote.options(**options, scheduling_strategy=bundle).remote()
        return ActorPlace(actor, words, given, log, self._ray.kill)
