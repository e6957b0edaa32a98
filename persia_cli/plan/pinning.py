"""The pinning of replicas to processors of their machine, and the check that they can run on them."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persia_cli.config.schema import Run
from persia_cli.config.schema.cluster import PART
from persia_cli.errors import ConfigError

if TYPE_CHECKING:
    # It imports numpy, which must start its threads only after a process is pinned.
    from persia_cli.plan.job import Replica

HERE = "this machine"
MAX_NAMED = 6


@dataclass(frozen=True, slots=True)
class MachineProcessors:
    """The processors of a machine, as texts such as `0-3,8`."""

    usable: str
    """The processors that processes may use: a control group, or taskset, may restrict them."""
    online: str
    nodes: dict[int, str]
    """Of each NUMA node."""


def require_processors(run: Run, replica: "Replica", machine: MachineProcessors, where: str = HERE) -> None:
    """Raise ConfigError if a replica cannot run on the processors that it is pinned to, or these are too few."""
    text = run.cluster.processors_of(replica.role, replica.index)
    if not text:
        return
    prefix = f"cluster.pin.{replica.role.replace('-', '_')}={text} for {replica.name}"
    processors = chosen(text, machine, prefix, where)
    if replica.role == "nn-worker":
        require_threads(run, processors, prefix)


def require_threads(run: Run, processors: Collection[int], prefix: str = "cluster.pin.nn_worker") -> None:
    """Raise ConfigError if an NN worker that is pinned to these processors has more threads.

    The number of threads is not lowered automatically: sums depend on it, and so would results.
    """
    threads = run.train.threads
    if run.cluster.processors_of("nn-worker", 0) and threads > len(processors):
        raise ConfigError(
            f"{prefix}: train.threads={threads} needs as many processors, and {as_text(processors)} are "
            f"{len(processors)}; pin each NN worker to more, or lower train.threads"
        )


def shared_processors(run: Run, replicas: Sequence["Replica"], where: str) -> str | None:
    """Return a warning if some of the replicas of a machine are pinned to the same processors; None if not.

    NUMA nodes do not count: a node is for several replicas.
    """
    pinned: dict[str, set[int]] = {}
    for replica in sorted(replicas, key=lambda each: (each.role, each.index)):
        parts = run.cluster.processors_of(replica.role, replica.index).split(",")
        pinned[replica.name] = {number for part in parts if ":" not in part for number in numbers(part)}
    counts = Counter(number for each in pinned.values() for number in each)
    shared = {number for number, count in counts.items() if count > 1}
    names = [name for name, each in pinned.items() if each & shared]
    if not names:
        return None
    others = f" and {len(names) - MAX_NAMED} others" if len(names) > MAX_NAMED else ""
    return (
        f"{', '.join(names[:MAX_NAMED])}{others} share processors {as_text(shared)} of {where}, and wait for each "
        "other there; give each its own by cluster.pin, or all of them a NUMA node"
    )


def chosen(text: str, machine: MachineProcessors, prefix: str, where: str = HERE) -> frozenset[int]:
    """Return the processors that a text names; of a node, those that may be used.

    Raise ConfigError, which begins with `prefix`, for those that do not exist or may not be used.
    """
    usable, online = numbers(machine.usable), numbers(machine.online)
    processors: set[int] = set()
    for part in text.split(","):
        matched = PART.fullmatch(part)
        if matched is None:
            raise ConfigError(f"{prefix}: {part or 'nothing'} is no processor; name some, such as 0-3,8 or node:0")
        part_of = numbers(part) if matched[3] is None else _of_node(int(matched[3]), machine, prefix, where)
        if not part_of:
            raise ConfigError(f"{prefix}: {part} is no range of processors; name the lower one first, such as 0-3")
        processors |= part_of
    if missing := processors - online:
        raise ConfigError(f"{prefix}: {where} has no processor {as_text(missing)}; it has {machine.online}")
    if barred := processors - usable:
        raise ConfigError(
            f"{prefix}: processes may not use processor {as_text(barred)} of {where}, only {machine.usable}, by a "
            "control group or taskset"
        )
    return frozenset(processors)


def _of_node(node: int, machine: MachineProcessors, prefix: str, where: str) -> frozenset[int]:
    if node not in machine.nodes:
        raise ConfigError(f"{prefix}: {where} has no NUMA node {node}; it has {as_text(machine.nodes) or 'none'}")
    processors = numbers(machine.nodes[node]) & numbers(machine.usable)
    if not processors:
        raise ConfigError(
            f"{prefix}: processes may not use any processor of node {node} of {where}, only {machine.usable}, by a "
            "control group or taskset"
        )
    return processors


def numbers(text: str) -> frozenset[int]:
    """Return the processors in a text such as `0-3,8`."""
    processors: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        processors |= set(range(int(first), int(last or first) + 1))
    return frozenset(processors)


def as_text(processors: Iterable[int]) -> str:
    """Return processors as a text such as `0-3,8`."""
    ranges: list[list[int]] = []
    for number in sorted(processors):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)
