"""`persia bench costs --check`: predictions next to measurements of configurations that were not fitted."""

from collections.abc import Sequence
from dataclasses import dataclass

from persia_cli.cost.measurements import MeasuredStep, Measurements
from persia_cli.cost.model import NN, SERVER, TERMS

BAR = 0.25
"""Greatest error of a prediction that is accepted."""
QUIET = 0.3
"""Above this load of other programs (cores), only CPU time is compared."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A predicted and a measured configuration."""

    name: str
    predicted_cpu: float
    """CPU seconds of a million samples, of all roles."""
    measured_cpu: float
    predicted_speed: float
    """Samples per second on the cores that other programs left."""
    measured_speed: float
    busy_cores: float

    @property
    def cpu_error(self) -> float:
        """Relative error of the CPU time."""
        return self.predicted_cpu / self.measured_cpu - 1.0

    @property
    def speed_error(self) -> float:
        """Relative error of the speed."""
        return self.predicted_speed / self.measured_speed - 1.0

    @property
    def is_accurate(self) -> bool:
        """True if CPU time, and speed on a machine without other programs, are within the bar."""
        return max(abs(self.cpu_error), abs(self.speed_error) if self.busy_cores <= QUIET else 0.0) <= BAR


def check(measured: Measurements, others: Sequence[MeasuredStep]) -> list[Checked]:
    """Compare steps that were not fitted with their predictions."""
    costs = measured.costs()
    found = []
    for each in others:
        cpu = {role: each.step.cpu(costs, role) for role in TERMS}
        left = max(measured.machine.cores - each.busy_cores, 0.01)
        replicas = {SERVER: each.step.servers, NN: each.step.ranks * each.threads}
        seconds = max(sum(cpu.values()) / left, *(cpu[role] / replicas.get(role, 1) for role in TERMS))
        million = 1e6 / each.step.batch
        predicted, used = sum(cpu.values()) * million, sum(each.cpu_s.values()) * million
        speed = each.step.batch / seconds
        found.append(Checked(each.name, predicted, used, speed, each.samples_per_s, each.busy_cores))
    return found
