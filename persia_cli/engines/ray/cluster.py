"""The Ray cluster: the connection to it, resources for a job in it, and an actor for each replica there."""

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from persia_cli.config.schema import RayCluster, Run
from persia_cli.engines.ray.place import Actor, ActorPlace
from persia_cli.engines.ray.request import STRATEGY, RayRequest, options_of, request_of, settings_of, why_no_room
from persia_cli.errors import ConfigError, RoleError, UserError, one_line
from persia_cli.plan.job import JobPlan, Replica

SLICE_S = 1
"""Seconds for which Ray is waited for at once; signals are handled in between."""
CLIENT = "ray://"
REACHED_S = 10.0
MOST_SAID = 300
"""Characters of Ray's message about a failure."""


def require_ray() -> None:
    """Raise ConfigError if Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError("cluster=ray needs Ray, which is not installed: pip install 'persia-cli[ray]'")


@contextmanager
def machines(plan: JobPlan) -> Iterator["RayMachines"]:
    """Yield the machines of one start of a job; raises UserError if no Ray cluster lets this process in."""
    run = plan.run
    require_reachable(run)
    settings = settings_of(run)
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


def require_reachable(run: Run) -> None:
    """Raise ConfigError unless Ray is installed, and something listens at the address of the run's cluster, if it names
    one; Ray itself would try for minutes.
    """
    require_ray()
    address = settings_of(run).address
    if not address:
        return
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
