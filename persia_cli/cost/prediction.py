"""The prediction of `persia plan`: speed, bottleneck, memory and traffic of a job, and the machines for a speed."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from persia_cli.config.schema import Run, SyncMode
from persia_cli.cost.frequency import Frequency
from persia_cli.cost.machines import MachineGroup, MachinesFile
from persia_cli.cost.measurements import CostBasis, step_size
from persia_cli.cost.model import FLOPS_PER_WEIGHT, NN, SERVER, TERMS, StepSize, all_reduce_bytes, traffic
from persia_cli.errors import UserError
from persia_cli.plan.dense import dense_bytes
from persia_cli.plan.embedding import embedding_layout, require_limits
from persia_cli.store.layout import MAX_ROWS, EmbeddingLayout

GPU_EFFICIENCY = 0.25
"""Fraction of a GPU's peak that the dense network is assumed to reach."""
MEMORY_USED = 0.9
"""Fraction of a machine's memory that rows and dense weights may take; processes and batches need the rest."""
MAX_REPLICAS = 1024
IN_SEQUENCE = "steps in sequence (mode=sync)"


@dataclass(frozen=True, slots=True)
class PlannedRole:
    """A role: its CPU time, the greatest speed of its replicas, and the replicas for the wanted speed."""

    role: str
    replicas: int
    cpu_us: float
    """CPU microseconds for a sample, of all replicas together."""
    limit: float
    """Samples per second of these replicas."""
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedMachines:
    """A kind of machines: what the job takes of it at the predicted, or the wanted, speed."""

    name: str
    count: int
    roles: tuple[str, ...]
    cores: float
    """Cores that are used on all these machines together."""
    memory: float
    """Bytes of rows and dense weights on all of them."""
    fits: bool
    """True if their memory is enough."""
    received_gbit: float
    """Gbit/s that each receives."""
    sent_gbit: float
    needed: int
    """Machines for the speed, by cores, memory, network and GPUs."""
    price_per_hour: float | None
    """Of the needed machines."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Everything here is predicted from costs of single steps."""

    samples_per_s: float
    error: float
    """The real speed lies between the predicted one divided by this and multiplied by it."""
    source: str
    """The origin of the costs."""
    limits: dict[str, float]
    """Samples per second that each resource allows, the bottleneck first."""
    wanted: float | None
    roles: list[PlannedRole]
    machines: list[PlannedMachines]
    rows: int
    parameters: int
    memory: int
    """Bytes of rows and index on all servers together, at capacity."""
    memory_per_server: float
    weights: int
    price_per_million: float | None
    """Price of a million samples at the predicted, or the wanted, speed."""
    assumptions: list[str]

    @property
    def bottleneck(self) -> str:
        """The resource that allows the lowest speed."""
        return next(iter(self.limits))


@dataclass(frozen=True)
class Site:
    """A job on its machines: the time and the bytes of a sample in each place."""

    run: Run
    weights: int
    basis: CostBasis
    frequency: Frequency
    kinds: tuple[MachineGroup, ...]
    layout: EmbeddingLayout

    @cached_property
    def step(self) -> StepSize:
        """The size of a step."""
        return step_size(self.run, self.frequency, self.weights, self.layout)

    @property
    def on_gpu(self) -> bool:
        """True if NN workers have GPUs."""
        return any(kind.gpus and NN in kind.roles for kind in self.kinds)

    def replicas(self, role: str) -> int:
        """Return the replicas of a role."""
        return int(getattr(self.run.cluster, _key(role)))

    def resized(self, replicas: dict[str, int]) -> "Site":
        """Return the same job with other numbers of replicas."""
        cluster = self.run.cluster.model_copy(update={_key(role): number for role, number in replicas.items()})
        return replace(self, run=self.run.model_copy(update={"cluster": cluster}))

    def cpu(self, role: str) -> float:
        """Return the CPU seconds of a sample, of all replicas of a role together."""
        without = "multiply_adds" if self.on_gpu and role == NN else ""
        return self.step.cpu(self.basis.costs, role, without) / self.step.batch

    def limit(self, role: str) -> float:
        """Return the samples per second of a role's replicas, each with its threads."""
        threads = self.run.train.threads if role == NN else 1
        return self.replicas(role) * threads / self.cpu(role)

    def gpu_limit(self, kind: MachineGroup) -> float:
        """Return the samples per second of one GPU."""
        return (kind.gpu_tflops or 0.0) * 1e12 * GPU_EFFICIENCY / (FLOPS_PER_WEIGHT * self.weights)

    def limits(self) -> dict[str, float]:
        """Return the samples per second that each resource allows, the lowest first."""
        limits = {role: self.limit(role) for role in TERMS}
        if isinstance(self.run.mode, SyncMode):
            limits[IN_SEQUENCE] = 1.0 / sum(1.0 / limits[role] for role in (*TERMS,)[1:])  # loaders are ahead
        for kind in self.kinds:
            if cpu := self.cpu_on(kind):
                limits[f"cores of {kind.name}"] = kind.count * kind.cores / cpu
            if kind.network is not None and any(self.bytes_on(kind)):
                limits[f"network of {kind.name}"] = kind.count * kind.network * 1e9 / 8 / max(self.bytes_on(kind))
            if kind.gpus and NN in kind.roles:
                used = min(kind.count * kind.gpus, self.share(kind, NN) * self.replicas(NN))
                limits[f"GPUs of {kind.name}"] = used * self.gpu_limit(kind)
        return dict(sorted(limits.items(), key=lambda limit: limit[1]))

    def share(self, kind: MachineGroup, role: str) -> float:
        """Return the part of a role's replicas that machines of a kind have, by their cores."""
        if role not in kind.roles:
            return 0.0
        return kind.count * kind.cores / sum(k.count * k.cores for k in self.kinds if role in k.roles)

    def cpu_on(self, kind: MachineGroup) -> float:
        """Return the CPU seconds of a sample on all machines of a kind together."""
        return sum(self.share(kind, role) * self.cpu(role) for role in TERMS)

    def bytes_on(self, kind: MachineGroup) -> tuple[float, float]:
        """Return the bytes of a sample that all machines of a kind receive and send; 0 if there is only one machine."""
        if sum(kind.count for kind in self.kinds) == 1:
            return 0.0, 0.0
        bytes_of = traffic(self.step)
        machines = min(self.step.ranks, sum(other.count for other in self.kinds if NN in other.roles))
        exchanged = self.share(kind, NN) * machines * all_reduce_bytes(machines, self.weights) / self.step.batch
        received = sum(self.share(kind, role) * bytes_of[role].received for role in TERMS)
        sent = sum(self.share(kind, role) * bytes_of[role].sent for role in TERMS)
        return received + exchanged, sent + exchanged

    def planned(self, kind: MachineGroup, speed: float) -> PlannedMachines:
        """Return what the job takes of a kind of machines at a speed."""
        cores = speed * self.cpu_on(kind)
        memory = self.share(kind, SERVER) * sum(group.nbytes for group in self.layout.feature_groups)
        memory += self.share(kind, NN) * self.replicas(NN) * dense_bytes(self.run.optimizer.dense, self.weights)
        received, sent = (speed * nbytes * 8 / 1e9 for nbytes in self.bytes_on(kind))
        demands = [cores / kind.cores, memory / (MEMORY_USED * kind.memory)]
        demands.append(max(received, sent) / (kind.network or math.inf))
        if kind.gpus and NN in kind.roles:
            demands.append(self.share(kind, NN) * speed / self.gpu_limit(kind) / kind.gpus)
        # At the limit of these machines all of them are needed, and rounding must not make it one more.
        needed = max(1, math.ceil(max(demands) - 1e-9))
        return PlannedMachines(
            name=kind.name,
            count=kind.count,
            roles=kind.roles,
            cores=cores,
            memory=memory,
            fits=demands[1] <= kind.count,
            received_gbit=received / kind.count,
            sent_gbit=sent / kind.count,
            needed=needed,
            price_per_hour=None if kind.price_per_hour is None else needed * kind.price_per_hour,
        )

    def needed(self, wanted: float) -> dict[str, int]:
        """Return the least replicas of each role for a speed; raises UserError if no number of them reaches it."""
        needed: dict[str, int] = {}
        least = max((math.ceil(group.capacity / MAX_ROWS) for group in self.layout.feature_groups), default=1)
        # The others' costs depend on the number of ranks, and that of embedding workers on the number of servers.
        for role in (NN, SERVER, *TERMS):
            number = needed.get(role, least if role == SERVER else 1)
            while (limit := self.resized(needed | {role: number}).full_limit(role)) < wanted:
                number = max(number + 1, math.floor(0.98 * number * wanted / limit))
                if number > min(MAX_REPLICAS, self.step.batch):
                    raise UserError(
                        f"--samples-per-s {wanted:,.0f}: {MAX_REPLICAS:,} replicas of {role} would not reach it with "
                        f"train.batch_size={self.step.batch} (predicted); raise the batch size, or ask for less"
                    )
            needed[role] = number
        together = self.resized(needed).limits().get(IN_SEQUENCE, math.inf)
        if together < wanted:
            raise UserError(
                f"--samples-per-s {wanted:,.0f}: with mode=sync roles wait for each other, which allows "
                f"{together:,.0f} with {needed[NN]} NN workers (predicted); use mode=hybrid, or ask for less"
            )
        return {role: needed[role] for role in TERMS}

    def full_limit(self, role: str) -> float:
        """Return the samples per second of a role's replicas, those of NN workers with their GPUs."""
        gpus = [self.replicas(NN) * self.gpu_limit(kind) for kind in self.kinds if kind.gpus and NN in kind.roles]
        return min([self.limit(role), *(gpus if role == NN else [])])


def _key(role: str) -> str:
    return f"{role.replace('-', '_')}s"


def measured_machine(basis: CostBasis) -> MachinesFile:
    """Return the machine that the costs hold for as the only one of a plan."""
    kind = MachineGroup(name="the measured machine", cores=basis.machine.cores, memory=basis.machine.memory)
    return MachinesFile(machines=(kind,))


def predict(
    run: Run,
    weights: int,
    basis: CostBasis,
    frequency: Frequency,
    machines: MachinesFile,
    wanted: float | None = None,
) -> Prediction:
    """Predict a job on machines; `wanted` is a speed in samples per second to size it for.

    Raise ConfigError for a layout that servers cannot hold, UserError for a speed that no number of replicas reaches.
    """
    layout = embedding_layout(run)
    require_limits(layout, run.cluster.embedding_servers)
    site = Site(run, weights, basis, frequency, machines.machines, layout)
    limits = site.limits()
    speed = next(iter(limits.values()))
    needed = site.needed(wanted) if wanted else {}
    planned = [site.resized(needed).planned(kind, wanted or speed) for kind in machines.machines]
    prices = [kind.price_per_hour for kind in planned if kind.price_per_hour is not None]
    price = sum(prices) / 3600.0 / (wanted or speed) * 1e6 if len(prices) == len(planned) else None
    roles = [
        PlannedRole(role, site.replicas(role), site.cpu(role) * 1e6, site.limit(role), needed.get(role))
        for role in TERMS
    ]
    rows = sum(group.capacity for group in layout.feature_groups)
    memory = sum(group.nbytes for group in layout.feature_groups)
    return Prediction(
        samples_per_s=speed,
        error=basis.error,
        source=basis.source,
        limits=limits,
        wanted=wanted,
        roles=roles,
        machines=planned,
        rows=rows,
        parameters=sum(group.capacity * group.dim for group in layout.feature_groups),
        memory=memory,
        memory_per_server=memory / run.cluster.embedding_servers,
        weights=weights,
        price_per_million=price,
        assumptions=[*_assumptions(site), *machines.assumptions],
    )


def _assumptions(site: Site) -> list[str]:
    part, most = site.step.batch / site.step.ranks, site.basis.batch
    assumptions = [
        f"a core is as fast as one of the measured machine, {site.basis.machine.processor}",
        "rows exist, as late in a training; networks have no delay; work is spread evenly",
        "a replica uses one core, an NN worker train.threads; among several machines all messages cross the network",
    ]
    if site.on_gpu:
        assumptions.append(
            f"a GPU reaches {GPU_EFFICIENCY:.0%} of gpu_tflops, with {FLOPS_PER_WEIGHT} operations for each dense "
            "weight and sample; there is one NN worker for each GPU"
        )
    if part > min(most, site.frequency.sizes[-1]):
        assumptions.append(f"a rank's {part:,.0f} samples are more than measured ({most:,}): extrapolated")
    return assumptions
