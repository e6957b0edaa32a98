"""The costs that a prediction rests on: those in a file of `persia bench costs`, or an estimate for this machine."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from persia_cli.bench.machine import Machine
from persia_cli.config.schema import Run
from persia_cli.cost.frequency import Frequency
from persia_cli.cost.model import TERMS, RoleCosts, StepSize, fit
from persia_cli.disk import write_whole
from persia_cli.errors import UserError, one_line
from persia_cli.plan.columns import dense_count, label_names
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.store.wire_rows import row_bytes

FORMAT = 2
ERROR = 1.25
"""Greatest ratio of a predicted to a measured speed, or the inverse; see `docs/guide/how-large.md`."""


@dataclass(frozen=True, slots=True)
class CostBasis:
    """The costs that a prediction rests on, and how far it may be wrong."""

    source: str
    """The origin of the costs, to follow the word "from"."""
    machine: Machine
    """The machine whose cores they hold for."""
    costs: RoleCosts
    batch: int
    """Largest batch that was measured."""
    error: float
    """The real speed lies between the predicted one divided by this and multiplied by it."""


class MeasuredStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured configuration: CPU seconds of each role for a step, and the speed of the whole job."""

    name: str
    step: StepSize
    cpu_s: dict[str, float]
    samples_per_s: float
    busy_cores: float
    """Mean number of cores that other processes used meanwhile."""
    threads: int


class Measurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that was measured on one machine."""

    format: int
    persia: str
    machine: Machine
    settings: dict[str, str]
    """The result of `settings_of`."""
    steps: tuple[MeasuredStep, ...]

    def costs(self) -> dict[str, dict[str, float]]:
        """Return the costs of roles that fit the measured steps."""
        return fit([measured.step for measured in self.steps], [measured.cpu_s for measured in self.steps])

    def basis(self, path: Path) -> CostBasis:
        """Return the costs as the basis of a prediction; `path` is that of their file."""
        batch = max(measured.step.batch for measured in self.steps)
        return CostBasis(f"the measurements in {path}", self.machine, self.costs(), batch, ERROR)


# Created while this module is imported: msgspec crashes if two threads decode a type for the first time at once.
_DECODER = msgspec.json.Decoder(Measurements)


def settings_of(run: Run) -> dict[str, str]:
    """Return the settings that costs depend on and that no term of the model has, by key."""
    return {
        "optimizer.embedding.kind": run.optimizer.embedding.kind,
        "embedding.dtype": run.embedding.dtype,
        "train.precision": run.train.precision,
    }


def require_same_settings(run: Run, measured: Measurements) -> None:
    """Raise UserError for a plan of other arithmetic than was measured."""
    for key, value in settings_of(run).items():
        if value != (known := measured.settings.get(key)):
            raise UserError(
                f"{key}={value}: the measurements have {known}; measure by persia bench costs, with the same arguments"
            )


def step_size(run: Run, frequency: Frequency, weights: int, layout: EmbeddingLayout | None = None) -> StepSize:
    """Return the size of a run's step, with unique rows by the curve of its ids."""
    layout = layout or embedding_layout(run)
    part = run.train.batch / run.cluster.nn_workers
    ids = id_values = rows = row_values = wire = 0.0
    for group in layout.feature_groups:
        for table in group.tables:
            unique, number = frequency.unique_ids(table.name, part), frequency.ids[table.name]
            ids, rows = ids + number, rows + unique
            id_values, row_values = id_values + number * group.dim, row_values + unique * group.dim
            wire += unique * row_bytes(group.dim, group.wire)
    return StepSize(
        batch=run.train.batch,
        ranks=run.cluster.nn_workers,
        servers=run.cluster.embedding_servers,
        dense=dense_count(run) + len(label_names(run)),
        ids=ids,
        id_values=id_values,
        rows=rows,
        row_values=row_values,
        wire_bytes=wire,
        converted=run.embedding.wire != "float32",
        weights=weights,
    )


def write_measurements(path: Path, measured: Measurements) -> None:
    """Write the file of measurements."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")


def read_measurements(path: Path) -> Measurements:
    """Read a file of measurements; raises UserError if it is missing or not one."""
    try:
        measured = _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"there are no measurements at {path}: persia bench costs, with the same arguments, writes them; "
            "or leave --costs out"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(
            f"{path} has no measurements of this version of persia: {one_line(error)}; measure again by persia bench "
            "costs"
        ) from error
    if measured.format != FORMAT or any(s.cpu_s.keys() < TERMS.keys() for s in measured.steps) or not measured.steps:
        raise UserError(f"{path} is of another version, or lacks a role; measure again by persia bench costs")
    return measured
