"""The file of measured costs: what `persia bench costs` writes and `persia plan` reads."""

from pathlib import Path

import msgspec

from persia_cli.bench.machine import Machine
from persia_cli.config.schema import Run
from persia_cli.cost.frequency import Frequency
from persia_cli.cost.model import TERMS, StepSize, fit
from persia_cli.disk import write_whole
from persia_cli.errors import UserError, one_line
from persia_cli.plan.columns import dense_count, label_names
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.store.wire_rows import row_bytes

FORMAT = 1


class MeasuredStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured configuration: CPU seconds of each role for a step, and the speed of the whole job."""

    name: str
    step: StepSize
    cpu_s: dict[str, float]
    samples_per_s: float
    busy_cores: float
    """Mean number of cores that other processes used meanwhile."""
    threads: int


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings that the costs hold for; a plan has the same."""

    tables: tuple[str, ...]
    dense: int
    optimizer: str
    dtype: str
    precision: str


class Measurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that was measured on one machine."""

    format: int
    persia: str
    machine: Machine
    subject: Subject
    steps: tuple[MeasuredStep, ...]
    frequency: Frequency

    def costs(self) -> dict[str, dict[str, float]]:
        """Return the costs of roles that fit the measured steps."""
        return fit([each.step for each in self.steps], [each.cpu_s for each in self.steps])


# Created while this module is imported: msgspec crashes if two threads decode a type for the first time at once.
_DECODER = msgspec.json.Decoder(Measurements)


def subject_of(run: Run) -> Subject:
    """Return the settings of a run that its costs depend on and that no term of the model has."""
    tables = tuple(table.name for table in embedding_layout(run).tables() if table.name[0] != "(")
    return Subject(tables, dense_count(run), run.optimizer.embedding.kind, run.embedding.dtype, run.train.precision)


def require_same_subject(run: Run, measured: Measurements) -> None:
    """Raise UserError for a plan of other data or other arithmetic than was measured."""
    keys = {"optimizer": "optimizer.embedding.kind", "dtype": "embedding.dtype", "precision": "train.precision"}
    planned, known = msgspec.structs.asdict(subject_of(run)), msgspec.structs.asdict(measured.subject)
    again = "measure by persia bench costs, with the same arguments"
    if (planned["tables"], planned["dense"]) != (known["tables"], known["dense"]):
        raise UserError(f"the measurements are of a data set with other features; {again}")
    for name, key in keys.items():
        if planned[name] != known[name]:
            raise UserError(f"{key}={planned[name]}: the measurements have {known[name]}; {again}")


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
        found = _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"there are no measurements at {path}: persia bench costs, with the same arguments, writes them; "
            "or name the file by --costs"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path} has no measurements of persia bench costs: {one_line(error)}") from error
    if found.format != FORMAT or any(each.cpu_s.keys() < TERMS.keys() for each in found.steps) or not found.steps:
        raise UserError(f"{path} is of another version, or lacks a role; measure again by persia bench costs")
    return found
