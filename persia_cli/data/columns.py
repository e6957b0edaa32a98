"""Whether a file's columns are what the config says they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from persia_cli.config.schema.dataset import BUILTIN, ColumnSplit, ParquetDataset, PredictSplit

GROUP = "group"


@dataclass(frozen=True, slots=True)
class Use:
    """What the config uses a column for: where that is said, and in what role."""

    column: str
    key: str
    role: str


def uses(dataset: ParquetDataset) -> Iterator[Use]:
    """Yield every use of a column, in the order of the config; a column may have several."""
    yield from (Use(name, "dataset.labels", "label") for name in label_columns(dataset))
    if dataset.weight is not None:
        yield Use(dataset.weight, "dataset.weight", "weight")
    yield from (Use(name, "dataset.dense", "dense") for name in dataset.dense)
    yield from (Use(feature.column or feature.name, "dataset.sparse", "sparse") for feature in dataset.sparse)
    if dataset.group_by is not None:
        yield Use(dataset.group_by, "dataset.group_by", GROUP)
    if isinstance(dataset.split, ColumnSplit):
        yield Use(dataset.split.column, "dataset.split", "split")


def label_columns(dataset: ParquetDataset) -> tuple[str, ...]:
    """Return the labels that are read: all, or none where samples are only to be scored."""
    return () if isinstance(dataset.split, PredictSplit) else dataset.labels


def column_problems(dataset: ParquetDataset, schema: Any) -> list[str]:
    """Return a sentence for each use of a column that the Arrow schema of a file does not allow."""
    problems = []
    for use in uses(dataset):
        count = schema.names.count(use.column)
        if count != 1:
            problems.append(_missing(use, schema.names) if count == 0 else _twice(use))
        elif (problem := _wrong_type(dataset, use, schema.field(use.column).type)) is not None:
            problems.append(problem)
    return list(dict.fromkeys(problems))


def list_columns(dataset: ParquetDataset, schema: Any) -> frozenset[str]:
    """Return the sparse features' columns that hold lists of ids."""
    names = {use.column for use in uses(dataset) if use.role == "sparse" and schema.names.count(use.column) == 1}
    return frozenset(name for name in names if is_list(schema.field(name).type))


def prepare_first(dataset: ParquetDataset) -> str:
    """Return how to make the data set readable: the recipe's command, if it has one."""
    if dataset.recipe is None:
        return "prepare the data first: hash each category to a 64-bit integer"
    return f"prepare the data first: {prepare_command(dataset)}"


def prepare_command(dataset: ParquetDataset) -> str:
    """Return the command that makes the data set by its recipe."""
    output = f"data/{dataset.recipe}" if dataset.path.startswith(BUILTIN) else dataset.path
    return f"persia recipe prepare {dataset.recipe} --input SOURCE --output {output}"


def _missing(use: Use, names: list[str]) -> str:
    near = get_close_matches(use.column, names, 1)
    if not near:
        near = [name for name in names if name.lower() == use.column.lower()]
    hint = f"did you mean {near[0]}?" if near else f"correct {use.key}; columns there are: {_some(names)}"
    return f"there is no column {use.column} ({use.role} column of {use.key}); {hint}"


def _twice(use: Use) -> str:
    return f"there are several columns {use.column} ({use.key}); give each a name of its own"


def _wrong_type(dataset: ParquetDataset, use: Use, kind: Any) -> str | None:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if use.role == "sparse":
        inner = plain.value_type if is_list(plain) else plain
        if pa.types.is_integer(inner):
            return None
        if is_text(inner):
            return f"column {use.column} holds strings, but a sparse feature needs integers; {prepare_first(dataset)}"
        return f"column {use.column} is {kind}, but a sparse feature needs integers or lists of integers"
    if use.role == "split":
        return _wrong_split(dataset, use, plain)
    if use.role == GROUP:
        fits = pa.types.is_integer(plain) or is_text(plain)
        return None if fits else f"column {use.column} is {kind}, but a group column holds integers or strings"
    if is_number(plain):
        return None
    if is_text(plain):
        return f"column {use.column} holds strings, but a {use.role} column holds numbers; {prepare_first(dataset)}"
    return f"column {use.column} is {kind}, but a {use.role} column holds numbers, one per row"


def _wrong_split(dataset: ParquetDataset, use: Use, kind: Any) -> str | None:
    split = dataset.split
    assert isinstance(split, ColumnSplit)
    for key, value in (("train", split.train), ("eval", split.eval)):
        if is_text(kind) and not isinstance(value, str):
            return f'column {use.column} holds strings; write dataset.split.{key} in quotes: "{value}"'
        if pa.types.is_integer(kind) and not isinstance(value, int):
            return f"column {use.column} holds integers; dataset.split.{key} must be one, not {value}"
    if is_text(kind) or pa.types.is_integer(kind):
        return None
    return f"column {use.column} is {kind}, but a split column holds strings or integers"


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list of some length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text or bytes."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
    )


def is_number(kind: Any) -> bool:
    """Whether an Arrow type becomes a float32."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _some(names: list[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
