"""The machine on which each replica of a job runs."""

from collections.abc import Mapping, Sequence

from persia_cli.config.schema import HostsCluster, Run, SshHost
from persia_cli.engines.engine import settings_of
from persia_cli.engines.placement import SERVER, owner_of
from persia_cli.errors import ConfigError
from persia_cli.plan.job import ROLES, Replica, all_replicas

Placement = Mapping[Replica, SshHost]
"""The machine of each replica, in the order of start."""


def first_of(run: Run) -> SshHost:
    """Return the machine of the coordinator, which has the record of the run and its driver."""
    return next(iter(placement_of(run).values()))


def placement_of(run: Run, left: Sequence[SshHost] | None = None) -> Placement:
    """Return the machine of each replica; raises ConfigError if there is none for one, or more than one.

    With `left`, only these machines are used.

    Machines with `roles` get what these name, and nothing else. Without them the coordinator is on the first, NN
    workers from the first on, and embedding servers from the one after the last NN worker on; the others share
    these machines, by `cluster.placement`.
    """
    hosts = settings_of(run, HostsCluster).hosts if left is None else left
    if not hosts:
        raise ConfigError("cluster=hosts needs machines: give cluster.hosts=[NAME,…], as ssh knows them")
    replicas = all_replicas(run)
    _refuse_unknown(hosts, replicas)
    free = [host for host in hosts if not host.roles]
    return {replica: _host_of(replica, run, hosts, free) for replica in replicas}


def _host_of(replica: Replica, run: Run, hosts: Sequence[SshHost], free: Sequence[SshHost]) -> SshHost:
    named = [host for host in hosts if replica.name in host.roles]
    if len(named) > 1:
        both = " and ".join(host.ssh for host in named)
        raise ConfigError(f"cluster.hosts: {replica.name} is in roles of {both}; name it once")
    if named:
        return named[0]
    if of_role := [host for host in hosts if replica.role in host.roles]:
        return of_role[replica.index % len(of_role)]
    if not free:
        raise ConfigError(
            f"cluster.hosts: no machine is for {replica.name}, since all have roles; add {replica.role} to those of one"
        )
    return free[_turn(replica, run) % len(free)]


def _turn(replica: Replica, run: Run) -> int:
    """Return the number of a replica's machine among those without roles, counted on from the last to the first."""
    owner = owner_of(run, replica)
    return owner.index + (run.cluster.nn_workers if owner.role == SERVER else 0)


def _refuse_unknown(hosts: Sequence[SshHost], replicas: Sequence[Replica]) -> None:
    there = {replica.name for replica in replicas}
    for host in hosts:
        for name in host.roles:
            if name not in ROLES and name not in there:
                raise ConfigError(
                    f"cluster.hosts: {host.ssh} has the role {name}, and this job has no such replica; "
                    f"name one of {', '.join(ROLES)}, or a single replica such as {replicas[-1].name}"
                )
