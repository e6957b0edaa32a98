"""The findings of `persia data inspect` about a data set."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from persia_cli.config.explain import explain, label_to_choose
from persia_cli.config.schema.dataset import CsvFormat, ParquetDataset
from persia_cli.config.schema.features import Label
from persia_cli.data.inspect.column import Progress, distinct_together, profile_columns
from persia_cli.data.inspect.files import open_files
from persia_cli.data.inspect.hints import are_fillers
from persia_cli.data.inspect.labels import candidates_of, comparable, words_of
from persia_cli.data.inspect.leaks import Leak, leaks_of
from persia_cli.data.inspect.profile import DatasetProfile
from persia_cli.data.inspect.queries import Queries
from persia_cli.data.inspect.roles import WRITTEN, Guess, name_of_buckets, roles_of
from persia_cli.data.inspect.split_rule import split_of, sql_of
from persia_cli.data.inspect.suggestion import suggest_dataset
from persia_cli.data.read import facts
from persia_cli.data.read.converted import Progress as Converting
from persia_cli.data.read.converted import silent
from persia_cli.data.read.dataset_yaml import NAME, to_yaml
from persia_cli.data.read.files import Format
from persia_cli.data.read.values import INTEGER
from persia_cli.errors import DataError
from persia_cli.storage.addresses import DELTA, is_elsewhere, rooted


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
    folder: Path | None = None,
) -> Inspection:
    """Read all rows; `form` is the format of CSV files where the folder's own description gives none.

    `wanted` is the format of files whose names do not show it. `folder` is where the suggestion will lie: a relative
    path in it is relative to this folder, by default the current one. CSV files with texts for none among numbers,
    such as `?`, are read twice, the second time with these as null.

    Raises DataError for files that cannot be read, or a description that is not valid.
    """
    known = read_description(path)
    form = form or (known.csv if known else CsvFormat())
    source = open_files(path, form, converting, wanted)
    with closing(Queries(source)) as queries:
        split = split_of(queries, known.split if known else None)
        queries.split = sql_of(split, queries)
        separators = (
            {feature.column_name: feature.separator for feature in known.sparse if feature.separator} if known else {}
        )
        columns = profile_columns(queries, separators, progress)
        profile = DatasetProfile(source, split, *columns)
        if known is None and source.format == "csv" and (nulls := sorted(_null_markers(profile) - {*form.nulls})):
            form = source.form.model_copy(update={"nulls": (*source.form.nulls, *nulls)})
            return inspect_data(path, progress, form, converting, wanted, folder)
        roles = roles_of(profile, known, queries)
        label = _label(profile, known, roles)
        leaks = _leaks(queries, profile, label, roles) if label else {}
        if known is None:
            roles |= {name: _with_leak(roles[name], leak) for name, leak in leaks.items()}
            roles |= _times_of_leaks(roles, leaks)
        if_chosen = [] if known or leaks or label else list(_leaks_if_chosen(queries, profile, roles))
        table_rows = _table_rows(queries, profile, roles)
    location = _seen_from(folder, path)
    if known is None:
        suggestion = suggest_dataset(profile, roles, location, source.form, wanted)
    else:
        moved = _with_events(known, partial(_seen_from, folder))
        suggestion = to_yaml(moved.model_copy(update={"path": location}))
    notes = (
        *_leak_notes(leaks, known),
        *if_chosen,
        *_written(roles),
        *_digits(profile, roles),
        *_as_training(suggestion, path),
    )
    return Inspection(profile, known, roles, table_rows, suggestion, notes)


def _null_markers(profile: DatasetProfile) -> set[str]:
    """Return the texts that stand for none in columns of numbers, but for those that may be one of a label's two."""
    columns = profile.columns.values()
    texts = {word for column in columns if are_fillers(column.hints.words) for word in column.hints.words}
    return texts - {value for column in columns if column.distinct == 2 for value, _ in column.top}


def _label(profile: DatasetProfile, known: ParquetDataset | None, roles: dict[str, Guess]) -> Label | None:
    """Return the first label; None without a label of two classes."""
    label = next(iter(known.label_rules if known else [guess.label for guess in roles.values() if guess.label]), None)
    if label is None or label.name not in profile.columns:
        return None
    numbers = profile.columns[label.name].numbers
    if label.positive is None and label.at_least is None and (numbers is None or not numbers.is_binary):
        return None
    return label


def _leaks(queries: Queries, profile: DatasetProfile, label: Label, roles: dict[str, Guess]) -> dict[str, Leak]:
    """Return the columns that give the label away, or may."""
    used = ("dense", "sparse", "weight")
    names = [
        name
        for name, column in profile.columns.items()
        if name != label.name and (roles[name].role in used or column.kind == "time" or column.hints.time)
    ]
    return leaks_of(queries, profile, label, names)


def _with_leak(guess: Guess, leak: Leak) -> Guess:
    """Return the guess for a column that gives the label away: it is left out, or has a doubt."""
    if leak.is_sure:
        return Guess("unused", leak.text)
    return replace(guess, doubt="; ".join(filter(None, (guess.doubt, leak.text))))


def _times_of_leaks(roles: dict[str, Guess], leaks: dict[str, Leak]) -> dict[str, Guess]:
    """Return new guesses for the times of columns that are left out, such as status_date next to status."""
    sure = [(name, words_of(name)) for name, leak in leaks.items() if leak.is_sure]
    return {
        name: Guess("unused", f"the time of {leak}, which is probably known only after the label")
        for leak, parts in sure
        for name, guess in roles.items()
        if guess.role == "time" and words_of(name)[: len(parts)] == parts
    }


def _leaks_if_chosen(queries: Queries, profile: DatasetProfile, roles: dict[str, Guess]) -> Iterator[str]:
    """Yield a sentence for each candidate of a label that columns give away, where none is chosen."""
    for candidate in comparable(candidates_of(profile)):
        leaks = _leaks(queries, profile, candidate.label, roles)
        if sure := [name for name, leak in leaks.items() if leak.is_sure]:
            yield f"if {candidate.name} is the label, leave out what gives it away alone: {', '.join(sure)}"


def _leak_notes(leaks: dict[str, Leak], known: ParquetDataset | None) -> Iterator[str]:
    for name, leak in leaks.items():
        yield f"column {name}{' is left out' if leak.is_sure and known is None else ''}: {leak.text}"


def _seen_from(folder: Path | None, path: str) -> str:
    """Return a path as a file in a folder names it; absolute paths, URIs and data that ships with persia stay."""
    prefix = DELTA if path.startswith(DELTA) else ""
    place = path.removeprefix(prefix)
    if folder is None or is_elsewhere(path) or Path(place).is_absolute():
        return path
    return prefix + os.path.relpath(place, folder.resolve())


def _as_training(suggestion: str, path: str) -> Iterator[str]:
    """Yield what training refuses in a data set with these files, or else what it warns of."""
    keys: dict[str, Any] = yaml.safe_load(suggestion) | {"path": path}
    if keys["labels"] == "???":
        yield label_to_choose(suggestion)
        return
    try:
        dataset = ParquetDataset.model_validate(keys)
        yield from facts.inspect(dataset).warnings
    except ValidationError as error:
        yield from explain(error, ParquetDataset, keys).values()
    except DataError as error:
        yield from (f"training refuses this: {line}" for line in str(error).splitlines())


def _written(roles: dict[str, Guess]) -> Iterator[str]:
    """Yield a sentence on columns left out because of how their numbers are written."""
    if names := [name for name, guess in roles.items() if guess.reason == WRITTEN]:
        yield f"left out, {WRITTEN}: {', '.join(names)}"


def _digits(profile: DatasetProfile, roles: dict[str, Guess]) -> Iterator[str]:
    """Yield a sentence for each column of ids of a Parquet file whose texts seem to be digits."""
    if profile.source.format != "parquet":
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
        described = ParquetDataset.model_validate(values)
    except ValidationError as error:
        mistakes = explain(error, ParquetDataset, values).values()
        raise DataError("\n".join(f"{file}: {sentence}" for sentence in mistakes)) from error
    return _with_events(described, lambda part: rooted(part, file.parent))


def _with_events(described: ParquetDataset, changed: Callable[[str], str]) -> ParquetDataset:
    """Return a data set with the changed paths of the events of its histories."""
    histories = {
        name: history.model_copy(update={"path": tuple(map(changed, history.paths)) or None})
        for name, history in described.histories.items()
    }
    return described.model_copy(update={"histories": histories})


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
