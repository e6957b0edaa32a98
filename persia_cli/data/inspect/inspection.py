"""The findings of `persia data inspect` about a data set."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from persia_cli.config.explain import explain
from persia_cli.config.schema.dataset import BUILTIN, CsvFormat, ParquetDataset
from persia_cli.data.inspect.column import distinct_together, profile_columns
from persia_cli.data.inspect.files import open_files
from persia_cli.data.inspect.profile import DatasetProfile
from persia_cli.data.inspect.queries import Progress, Queries
from persia_cli.data.inspect.roles import Guess, name_of_buckets, roles_of
from persia_cli.data.inspect.split_rule import split_rule_of
from persia_cli.data.inspect.suggestion import suggest_dataset
from persia_cli.data.read import facts
from persia_cli.data.read.converted import Progress as Converting
from persia_cli.data.read.converted import silent
from persia_cli.data.read.dataset_yaml import NAME, to_yaml
from persia_cli.data.read.files import Format
from persia_cli.data.read.values import INTEGER
from persia_cli.errors import DataError


@dataclass(frozen=True, slots=True)
class Inspection:
    """A profile, and the conclusions drawn from it."""

    profile: DatasetProfile
    known: ParquetDataset | None
    """The folder's own description, if it has one."""
    roles: dict[str, Guess]
    table_rows: dict[str, int]
    """Distinct ids of each table."""
    suggestion: str
    """YAML of the data set: a guess, or the folder's own description."""
    notes: tuple[str, ...]
    """Sentences on the suggestion: what training refuses or warns of, and texts of digits."""


def inspect_data(
    path: str,
    progress: Progress,
    form: CsvFormat | None = None,
    converting: Converting = silent,
    wanted: Literal["auto"] | Format = "auto",
) -> Inspection:
    """Read all rows; `form` is the format of CSV files where the folder's own description gives none.

    `wanted` is the format of files whose names do not show it.

    Raises DataError for files that cannot be read, or a description that is not valid.
    """
    known = read_description(path)
    form = form or (known.csv if known else CsvFormat())
    source = open_files(path, form, converting, wanted)
    with closing(Queries(source, progress)) as queries:
        split_rule = split_rule_of(queries, known.split if known else None)
        separators = {each.column_name: each.separator for each in known.sparse if each.separator} if known else {}
        profile = DatasetProfile(source, split_rule, *profile_columns(queries, split_rule.sql(queries), separators))
        roles = roles_of(profile, known, queries)
        table_rows = _table_rows(queries, profile, roles)
    is_local = "://" not in path and not path.startswith(BUILTIN)
    place = str(Path(path).absolute()) if is_local else path
    if known is None:
        suggestion = suggest_dataset(profile, roles, place, source.form, wanted)
    else:
        suggestion = to_yaml(known.model_copy(update={"path": place}))
    notes = (*_digits(profile, roles), *_as_training(yaml.safe_load(suggestion)))
    return Inspection(profile, known, roles, table_rows, suggestion, notes)


def _as_training(keys: dict[str, Any]) -> Iterator[str]:
    """Yield what training refuses in a data set, or else what it warns of; nothing without a label."""
    if "???" in keys["labels"]:
        return
    try:
        dataset = ParquetDataset.model_validate(keys)
        yield from facts.inspect(dataset).warnings
    except ValidationError as error:
        yield from explain(error, ParquetDataset, keys).values()
    except DataError as error:
        yield from (f"training refuses this: {line}" for line in str(error).splitlines())


def _digits(profile: DatasetProfile, roles: dict[str, Guess]) -> Iterator[str]:
    """Yield a sentence for each column of ids of a Parquet file whose texts seem to be digits."""
    if profile.source.files[0].source is not None:
        return
    for name, column in profile.columns.items():
        is_text = roles[name].role == "sparse" and column.kind == "text" and column.top
        if is_text and all(INTEGER.match(value) for value, _ in column.top):
            yield (
                f"column {name} has digits as text, which have other ids than integers, and than the same digits in "
                f"CSV; {{name: {name}, ids: integer}} reads them as integers"
            )


def read_description(path: str) -> ParquetDataset | None:
    """Return the data set described by the dataset.yaml in a folder; None if there is no such file."""
    file = Path(path) / NAME
    if "://" in path or not file.is_file():
        return None
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"{file}: cannot be read, {str(error).splitlines()[0]}; correct or remove it") from error
    if not isinstance(values, dict):
        raise DataError(f"{file}: expected the keys of a data set, such as kind, path and labels; correct or remove it")
    values["path"] = path
    try:
        return ParquetDataset.model_validate(values)
    except ValidationError as error:
        mistakes = explain(error, ParquetDataset, values).values()
        raise DataError("\n".join(f"{file}: {sentence}" for sentence in mistakes)) from error


def _table_rows(queries: Queries, profile: DatasetProfile, roles: dict[str, Guess]) -> dict[str, int]:
    """Return the number of distinct ids of each table, over all columns that read it."""
    members: dict[str, dict[str, str | None]] = {}
    buckets = {name_of_buckets(name, roles): guess.buckets for name, guess in roles.items() if guess.buckets}
    for name, guess in roles.items():
        has_ids = guess.role == "sparse" or guess.buckets == 0
        if has_ids and profile.columns[name].distinct is not None:
            members.setdefault(guess.table or name, {})[name] = guess.separator
    alone = {table: profile.columns[next(iter(names))].distinct or 0 for table, names in members.items()}
    together = {table: distinct_together(queries, names) for table, names in members.items() if len(names) > 1}
    return alone | together | buckets
