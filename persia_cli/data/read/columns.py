"""Checks of a file's columns against the uses that the config makes of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.config.schema.split import PART_NAMES, ColumnSplit, EvalSplit, LastSplit, PredictSplit, TimeSplit
from persia_cli.data.read.arrow_types import NUMBERS, WORDS, Class, UnusableValueError, class_of, is_list, plain_type
from persia_cli.data.read.csv_files import WITH_ZERO
from persia_cli.data.read.gaps import wrong_moments
from persia_cli.data.read.settled import wrong_ids, wrong_numbers
from persia_cli.data.read.times import READ_AS_TIMES, TIMES, classes_of, from_format, microseconds
from persia_cli.data.read.values import INTEGER
from persia_cli.storage.addresses import BUILTIN

QUERY, USER, TIME, TIMES_OF_LISTS = "query", "user", "time", "times"


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a column: the config key that names the column, and the column's role."""

    column: str
    key: str
    role: str


def uses(dataset: ParquetDataset) -> Iterator[Use]:
    """Yield every use of a column, in the order of the config; a column may have several."""
    yield from (Use(name, "dataset.labels", "label") for name in label_columns(dataset))
    if dataset.weight is not None:
        yield Use(dataset.weight, "dataset.weight", "weight")
    for feature in dataset.dense_features:
        if feature.until is None:
            yield Use(feature.name, "dataset.dense", "dense")
        elif dataset.history_of_times(feature) is None:
            yield from (Use(name, "dataset.dense", TIMES_OF_LISTS) for name in (feature.name, feature.until))
    of_samples = (feature for feature in dataset.sparse if dataset.history_of(feature) is None)
    yield from (Use(feature.column_name, "dataset.sparse", "sparse") for feature in of_samples)
    for name, history in dataset.histories.items():
        yield Use(history.user, f"dataset.histories.{name}.user", USER)
        yield Use(history.time, f"dataset.histories.{name}.time", TIME)
    if dataset.group_by is not None:
        yield Use(dataset.group_by, "dataset.group_by", QUERY)
    yield from (Use(name, "dataset.split", "split") for name in dataset.split.columns)


def label_columns(dataset: ParquetDataset) -> tuple[str, ...]:
    """Return the labels that are read: all, or none where samples are only to be scored."""
    return () if isinstance(dataset.split, PredictSplit) else dataset.label_names


def column_problems(
    dataset: ParquetDataset, schema: Any, is_text_file: bool, look: Callable[[str], str | None]
) -> list[str]:
    """Return a sentence for each use of a column that does not fit the Arrow schema of a file, which was text or not.

    `look` returns a sentence on the texts of a column where numbers are due, or None.
    """
    problems = []
    counts, dense = Counter(schema.names), {feature.name: feature for feature in dataset.dense_features}
    for use in uses(dataset):
        count = counts[use.column]
        if count != 1:
            twice = f"there are several columns {use.column} ({use.key}); give each a different name"
            problems.append(_missing(dataset, use, schema.names) if count == 0 else twice)
        elif (problem := _wrong_type(dataset, dense, use, schema.field(use.column).type, is_text_file)) is not None:
            is_text = use.role == "dense" and class_of(schema.field(use.column).type) == "text"
            problems.append((is_text and look(use.column)) or problem)
    return list(dict.fromkeys(problems))


def changed_as_text(dataset: ParquetDataset, schema: Any) -> list[str]:
    """Return a sentence for each column of a CSV file that is to be hashed as text, but lost how it was written.

    True would be hashed as true, and 1.0 as 1, but as True and 1.0 in a file whose column also holds text.
    """
    hashed = {feature.column_name for feature in dataset.sparse if feature.ids == "text"}
    return [
        f"column {field.name} is hashed as text, but has {WORDS[class_of(field.type)]} alone here, which can be "
        f"written in several ways; declare that it is text: dataset.csv.text=[{field.name}]"
        for field in schema
        if field.name in hashed and (class_of(field.type) == "boolean" or field.metadata == WITH_ZERO)
    ]


def list_columns(dataset: ParquetDataset, schema: Any) -> frozenset[str]:
    """Return the sparse features' columns that hold lists of ids."""
    counts = Counter(schema.names)
    roles = ("sparse", TIMES_OF_LISTS)
    names = {use.column for use in uses(dataset) if use.role in roles and counts[use.column] == 1}
    return frozenset(name for name in names if is_list(schema.field(name).type))


def classes(dataset: ParquetDataset, schema: Any) -> dict[str, str]:
    """Return the contents of each column in use, as texts that are equal for compatible files.

    Columns that hold only nulls are left out: they fit any other.
    """
    hashed = {feature.column_name for feature in dataset.sparse if feature.ids == "text"}
    timed = _read_as_times(dataset)
    contents, counts = {}, Counter(schema.names)
    for name in dict.fromkeys(use.column for use in uses(dataset) if counts[use.column] == 1):
        kind = plain_type(schema.field(name).type)
        values = class_of(kind.value_type if is_list(kind) else kind)
        if values == "null":
            continue
        content = "numbers" if values in NUMBERS else WORDS.get(values, str(kind))
        if name in hashed and not (is_list(kind) and values == "list"):
            content = "what can be hashed"
        elif values in timed.get(name, ()):
            content = "times"
        contents[name] = f"lists of {content}" if is_list(kind) else content
    return contents


def _read_as_times(dataset: ParquetDataset) -> dict[str, frozenset[Class]]:
    """Return the columns that features read as times, with the classes that they may have.

    A column with a format that others read as numbers or texts keeps its contents, which these need.
    """
    readers = [(feature.column_name, feature.ids == "time", feature.format) for feature in dataset.sparse]
    readers += [(feature.name, feature.values == "time", feature.format) for feature in dataset.dense_features]
    others = {name for name, is_time, _ in readers if not is_time}
    return {
        name: READ_AS_TIMES | classes_of(form)
        for name, is_time, form in readers
        if is_time and not (form and name in others)
    }


def prepare_command(dataset: ParquetDataset) -> str:
    """Return the command that prepares the data set with its recipe."""
    output = f"data/{dataset.recipe}" if dataset.paths[0].startswith(BUILTIN) else dataset.paths[0]
    return f"persia recipe prepare {dataset.recipe} --input SOURCE --output {output}"


def _missing(dataset: ParquetDataset, use: Use, names: list[str]) -> str:
    whole, _, inner = use.column.partition(".")
    if inner and whole in names:
        return (
            f"there is no column {use.column} ({use.role} column of {use.key}), and the fields of a column of structs, "
            f"as {whole} may be, are not read; write {inner} as a separate column, as DuckDB does by SELECT *, "
            f'"{whole}".{inner} AS {whole}_{inner}'
        )
    near = get_close_matches(use.column, names, 1)
    if not near:
        near = [name for name in names if name.lower() == use.column.lower()]
    hint = f"did you mean {near[0]}?" if near else f"correct {use.key}; columns there are: {_some(names)}"
    if isinstance(dataset.split, PredictSplit | EvalSplit):
        there = f"; columns there are: {_some(names)}" if not near else f"; rename {near[0]}, if that is it"
        if use.role in ("weight", QUERY):
            there = f"; add it, or evaluate without it: {use.key}=null"
        return f"there is no column {use.column}, which the model was trained with ({use.key}){there}"
    return f"there is no column {use.column} ({use.role} column of {use.key}); {hint}"


def _wrong_type(
    dataset: ParquetDataset, dense: Mapping[str, DenseFeature], use: Use, kind: Any, is_text: bool
) -> str | None:
    plain = plain_type(kind)
    values = class_of(plain)
    if values == "integer" and _is_hashed(dataset, use.column) and (number := _number_of(dataset, use)):
        return (
            f"column {use.column} holds ids of text (dataset.raw), but {number}; take it out of {use.key}, or name a "
            "column of numbers"
        )
    if use.role == "sparse":
        return _wrong_ids(dataset, use, kind, is_text)
    if use.role == TIMES_OF_LISTS:
        of = (feature for feature in dataset.times if use.column in (feature.name, feature.until))
        wrong = next(filter(None, (wrong_moments(feature, use.column, kind) for feature in of)), None)
        return wrong and f"column {wrong}"
    if use.role == "dense" and (is_list(plain) or dense[use.column].width is not None):
        return _wrong_vectors(dataset, use, dense[use.column].width, plain)
    if use.role == "label":
        return _wrong_label(dataset, use, kind)
    if use.role == "split":
        return _wrong_split(dataset, use, plain, is_text)
    if use.role == USER:
        return _no_id(use.column, kind, values, is_text, "users are integers, strings or times")
    if use.role == TIME:
        formats = {history.format for history in dataset.histories.values() if history.time == use.column}
        return None if values == "null" else _no_time(use.column, kind, values, *formats)
    if use.role == QUERY:
        return _no_id(use.column, kind, values, is_text, "query ids are integers, strings or times")
    if use.role == "dense":
        if (wrong := wrong_numbers(dense[use.column], values)) is not None:
            return wrong
        if dense[use.column].values == "time":
            return None
        if values == "text":
            return (
                f"column {use.column} holds strings, but a dense feature is a number; list it under dataset.sparse, "
                "where strings are hashed, write numbers in its place, or declare times: "
                f"{{name: {use.column}, values: time}}"
            )
    if values in NUMBERS or values == "null":
        return None
    wanted = {"weight": "a weight is a number that is not negative"}
    rule = wanted.get(use.role, "a dense feature is a number")
    return f"column {use.column} holds {WORDS.get(values, kind)}, but {rule}, one per row; write numbers in its place"


def _wrong_vectors(dataset: ParquetDataset, use: Use, width: int | None, plain: Any) -> str | None:
    if not is_list(plain):
        if pa.types.is_null(plain):
            return None
        values = WORDS.get(class_of(plain), str(plain))
        if isinstance(dataset.split, PredictSplit | EvalSplit):
            return (
                f"column {use.column} holds {values}, and the model was trained with lists of {width} numbers; write "
                "these in their place"
            )
        return (
            f"column {use.column} holds {values}, and {use.key} gives it width: {width}, which is of lists of numbers; "
            "leave out width"
        )
    if class_of(plain.value_type) in NUMBERS | {"null"}:
        return None
    return (
        f"column {use.column} is {plain}, but a dense feature is a number, or a list of numbers of one length; list it "
        "under dataset.sparse, where lists of ids are pooled"
    )


def _is_hashed(dataset: ParquetDataset, column: str) -> bool:
    """Return whether a column was made of text, so that its integers are ids that have no order."""
    raw = next((raw for raw in dataset.raw if column in raw.columns), None)
    return raw is not None and (raw.read == "hexadecimal" or raw.table_of(column) is not None)


def _number_of(dataset: ParquetDataset, use: Use) -> str | None:
    """Return a clause on what must be a number where a column is used; None where an id will do."""
    if use.role == "label":
        is_rule = any(label.positives for label in dataset.label_rules if label.name == use.column)
        return None if is_rule else "a label is a number"
    if use.role == "sparse":
        cut = any(feature.buckets is not None and feature.column_name == use.column for feature in dataset.sparse)
        return "buckets are made of numbers" if cut else None
    return {"dense": "a dense feature is a number", "weight": "the weight of a sample is a number"}.get(use.role)


def _wrong_label(dataset: ParquetDataset, use: Use, kind: Any) -> str | None:
    values = class_of(kind)
    positives = next(label.positives for label in dataset.label_rules if label.name == use.column)
    if positives:
        texts = {isinstance(value, str) for value in positives}
        if values == "text" and texts != {True}:
            return f"column {use.column} holds strings; write the positive value of this label in quotes"
        if values in NUMBERS and texts != {False}:
            return f"column {use.column} holds {WORDS[values]}; the positive value of this label must be a number"
    if values in NUMBERS or values == "null" or (values == "text" and positives):
        return None
    if values == "text":
        return (
            f"column {use.column} holds strings, but a label is a number from 0 to 1; declare which one is positive: "
            f"dataset.labels=[{{name: {use.column}, positive: VALUE}}]"
        )
    return f"column {use.column} holds {WORDS.get(values, kind)}, but a label is a number from 0 to 1, one per row"


_IDS: frozenset[Class] = frozenset({"integer", "text", "boolean", "float", "decimal", "date", "timestamp", "null"})
"""The classes that ids can be made from; of `decimal` and of `float`, which text files have not, whole numbers only."""


def _wrong_ids(dataset: ParquetDataset, use: Use, kind: Any, is_text: bool) -> str | None:
    plain = plain_type(kind)
    values = class_of(plain.value_type if is_list(plain) else plain)
    if pa.types.is_struct(plain):
        inner = plain.field(0).name if plain.num_fields else "FIELD"
        return (
            f"column {use.column} holds structs, whose fields are not read; write each as a separate column, as "
            f'DuckDB does by SELECT *, "{use.column}".{inner} AS {use.column}_{inner}'
        )
    cut = any(
        (feature.buckets is not None or feature.format is not None) and feature.column_name == use.column
        for feature in dataset.sparse
    )
    rule = "a sparse feature is an id or a list of ids, integers or strings"
    if (wrong := _no_id(use.column, kind, values, is_text and not cut, rule)) is not None:
        return wrong
    for feature in dataset.sparse:
        if feature.column_name != use.column:
            continue
        allowed = READ_AS_TIMES | classes_of(feature.format) if feature.ids == "time" else NUMBERS | TIMES | {"null"}
        if feature.buckets is not None and (values not in allowed or is_list(plain)):
            return f"column {use.column} is {kind}, but buckets are made of numbers, one per row"
        if (wrong := _wrong_settings(feature, values, is_list(plain))) is not None:
            return f"column {use.column} holds {WORDS.get(values, plain)}, {wrong}"
        if (wrong := wrong_ids(feature, values, is_text)) is not None:
            return wrong
    return None


def _no_id(column: str, kind: Any, values: Class, is_text: bool, rule: str) -> str | None:
    """Return a sentence if ids cannot be made of values of a class.

    An integer of a text file is what is written as one: as numbers, 100000, 1E5 and 10E4 would be one id.
    """
    if values not in _IDS:
        return f"column {column} is {kind}, but {rule}"
    if values == "float" and is_text:
        return (
            f"column {column} has numbers that are not written as integers, such as 1.5, 1E5, or both 1.0 and 1, and "
            f"{rule}: write integers, or texts (in CSV: dataset.csv.text=[{column}])"
        )
    return None


def _wrong_settings(feature: SparseFeature, values: Class, has_lists: bool) -> str | None:
    """Return a clause on a separator or padding that the values of a column cannot have."""
    if feature.separator is not None and not has_lists and values not in ("text", "integer", "null"):
        return f"and separator is of texts; leave it out of {feature.name}"
    if feature.ids == "time" or values in TIMES:
        wrong = None if feature.padding is None else _wrong_time(feature.padding, feature.format)
        return wrong and f"and padding of {feature.name}: {wrong}"
    may_be_text = feature.ids == "text" or values == "text" or (feature.separator is not None and not has_lists)
    if isinstance(feature.padding, str) and not may_be_text and not INTEGER.match(feature.padding):
        return f"and padding: {feature.padding!r} of {feature.name} is no number; write the value that fills lists up"
    return None


def _wrong_time(value: str | int, form: str | None = None) -> str | None:
    """Return a clause on a value that is no time."""
    try:
        microseconds(from_format(pa.array([str(value)]), form))
    except UnusableValueError as error:
        return str(error)
    return None


def _wrong_split(dataset: ParquetDataset, use: Use, kind: Any, is_text: bool) -> str | None:
    split, values = dataset.split, class_of(kind)
    if (isinstance(split, TimeSplit) and use.column == split.column) or (
        isinstance(split, LastSplit) and use.column == split.order
    ):
        return _no_time(use.column, kind, values, split.format)
    if not isinstance(split, ColumnSplit):
        return _no_id(use.column, kind, values, is_text, "a split takes groups of integers, texts or dates")
    if values not in ("text", "integer", "boolean", "date", "timestamp"):
        return f"column {use.column} is {kind}, but a split column holds strings, integers or times"
    for key in PART_NAMES:
        for value in split.values(key):
            if values in ("text", *TIMES) and not isinstance(value, str):
                return f'column {use.column} holds {WORDS[values]}; write dataset.split.{key} in quotes: "{value}"'
            if values in TIMES and (wrong := _wrong_time(value)) is not None:
                return f"column {use.column} holds {WORDS[values]}, and dataset.split.{key}: {wrong}"
            if values in ("integer", "boolean") and not isinstance(value, int):
                wanted = "be one" if values == "integer" else "be 1 or 0"
                return f'column {use.column} holds {WORDS[values]}; dataset.split.{key} must {wanted}, not "{value}"'
    return None


def _no_time(column: str, kind: Any, values: Class, *formats: str | None) -> str | None:
    """Return a sentence if a column holds no times in any of these formats."""
    if values in {"date", "timestamp", "integer", "text"}.union(*map(classes_of, formats)):
        return None
    return f"column {column} is {kind}, but times are dates, timestamps, integers or texts such as 2024-02-01"


def _some(names: list[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
