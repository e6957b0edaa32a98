"""The bottleneck of a running training in one sentence, by the rates of its replicas, and what would help."""

from collections.abc import Sequence

from persia_cli.config.schema import Run, SyncMode
from persia_cli.observe.moment import Moment, ReplicaRates

BUSY = 0.9
"""Fraction of its time, or of a machine's cores, from which on a replica or a machine counts as fully used."""
IDLE = 0.5
"""Fraction of waiting from which on a role does not limit the speed."""


def bottleneck(run: Run, rates: Sequence[ReplicaRates], now: Moment, on_gpu: bool) -> str:
    """Return the sentence; empty if too little is known. The `rates` are those of about this moment."""
    cores, load = now.cores, now.load
    host = next((each.where.partition(" ")[0] for each in rates if each.role == "coordinator"), "")
    here = [each for each in rates if each.where.partition(" ")[0] == host]
    used = sum(each.cpu or 0.0 for each in here)
    waits = {
        role: min(fractions)
        for role in {each.role for each in rates} - {"coordinator"}
        if (fractions := [each.waits for each in rates if each.role == role and each.waits is not None])
    }
    if "nn-worker" not in waits:
        return ""
    if cores and used >= BUSY * cores:
        return (
            f"The {cores} cores of {host} are the bottleneck ({_by_role(here)}). A machine with more of them helps, or "
            "several machines (cluster=hosts)."
        )
    if cores and load >= 1.0 and not on_gpu:
        return f"Other programs use the cores of {host} too: of its {cores}, they leave {used:.1f} to this job."
    if waits["nn-worker"] <= 1.0 - BUSY:
        free = int(cores - used) if cores else 0
        time = f"{1.0 - waits['nn-worker']:.0%} of the time"
        return f"The NN workers are the bottleneck: they work {time}. {_more_arithmetic(run, free, on_gpu)} may help."
    del waits["nn-worker"]
    role = min(waits, key=lambda each: waits[each], default="")
    if role and waits[role] < IDLE:
        name = role.replace("-", " ") + "s"
        more = f"cluster.{role.replace('-', '_')}s={getattr(run.cluster, role.replace('-', '_') + 's') + 1}"
        return f"The {name} are the bottleneck: they wait only {waits[role]:.0%} of the time. {more} may help."
    more = "mode=hybrid" if isinstance(run.mode, SyncMode) else f"mode.staleness={2 * run.mode.staleness}"
    return f"Round trips are the bottleneck: every role waits for others. {more} may help."


def _by_role(rates: Sequence[ReplicaRates]) -> str:
    """Return the cores that each role uses as text, most first."""
    used: dict[str, float] = {}
    for each in rates:
        used[each.role] = used.get(each.role, 0.0) + (each.cpu or 0.0)
    shown = sorted(((cpu, role) for role, cpu in used.items() if cpu >= 0.05), reverse=True)
    return ", ".join(f"{role} {cpu:.1f}" for cpu, role in shown) if len(shown) > 1 else "all roles together"


def _more_arithmetic(run: Run, free: int, on_gpu: bool) -> str:
    """Return a setting with which NN workers compute faster, by the `free` cores of the machine."""
    workers, threads = run.cluster.nn_workers, run.train.threads
    if on_gpu:
        return f"A greater train.batch_size, or a GPU more and cluster.nn_workers={workers + 1},"
    if free >= workers:
        return f"train.threads={threads + free // workers}"
    return f"More machines and cluster.nn_workers={workers + 1}"
