"""Everything `persia data inspect` finds out about a data set."""

from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from persia_cli.config.schema.dataset import BUILTIN, ParquetDataset
from persia_cli.data.dataset_yaml import NAME, to_yaml
from persia_cli.data.profile.cardinality import Cardinality
from persia_cli.data.profile.dataset import ColumnProfile, DatasetProfile, Progress, profile_dataset
from persia_cli.data.profile.roles import Guess, roles_of
from persia_cli.data.profile.suggestion import suggest_dataset
from persia_cli.errors import DataError


@dataclass(frozen=True, slots=True)
class Inspection:
    """A profile, and what is made of it."""

    profile: DatasetProfile
    known: ParquetDataset | None
    """What the folder's own description says, if it has one."""
    roles: dict[str, Guess]
    table_rows: dict[str, int]
    """Distinct ids of each table."""
    suggestion: str
    """YAML: a guess, or what the folder's own description says."""


def inspect_data(path: str, progress: Progress) -> Inspection:
    """Look at all rows; raises DataError for files that cannot be read, or a description that makes no sense."""
    known = read_description(path)
    profile = profile_dataset(path, known.split if known else None, progress)
    roles = roles_of(profile, known)
    is_local = "://" not in path and not path.startswith(BUILTIN)
    place = str(Path(path).absolute()) if is_local else path
    suggestion = (
        suggest_dataset(profile, roles, place) if known is None else to_yaml(known.model_copy(update={"path": place}))
    )
    return Inspection(profile, known, roles, _table_rows(profile, roles), suggestion)


def read_description(path: str) -> ParquetDataset | None:
    """Return what the dataset.yaml in a folder says; None where there is none."""
    file = Path(path) / NAME
    if "://" in path or not file.is_file():
        return None
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        return ParquetDataset.model_validate({**values, "path": path})
    except (OSError, UnicodeDecodeError, TypeError, yaml.YAMLError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise DataError(f"{file} is no description of a data set ({first}); correct or remove it") from error


def _table_rows(profile: DatasetProfile, roles: dict[str, Guess]) -> dict[str, int]:
    """Return the distinct ids of each table, over all columns that share it."""
    members: dict[str, list[ColumnProfile]] = {}
    for name, guess in roles.items():
        if guess.role == "sparse":
            members.setdefault(guess.table or name, []).append(profile.columns[name])
    rows = {}
    for table, columns in members.items():
        # An estimate may fall below what one column alone is known to have.
        rows[table] = max(column.distinct or 0 for column in columns)
        if len(columns) > 1:
            all_ids = Cardinality()
            for column in columns:
                all_ids = all_ids.joined(column.cardinality)
            rows[table] = max(rows[table], all_ids.estimate())
    return rows
