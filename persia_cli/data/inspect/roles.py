"""The probable role of each column of a data set: label, dense, sparse, or unused."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import Label
from persia_cli.config.schema.split import ColumnSplit
from persia_cli.data.inspect.amounts import FEW, LIKELY, SURE, Amount, amounts_of
from persia_cli.data.inspect.files import SourceFiles
from persia_cli.data.inspect.labels import candidates_of, chosen_of, is_usual, positive_sql
from persia_cli.data.inspect.profile import ColumnProfile, DatasetProfile, NumberStatistics, TimeHint
from persia_cli.data.inspect.queries import Queries
from persia_cli.data.read.dense_transforms import transform_for
from persia_cli.data.read.values import INTEGER

Role = Literal["label", "dense", "sparse", "weight", "split", "time", "unused"]

WEIGHTS = ("weight", "weights", "sample_weight")
WRITTEN = "numbers with commas, % or a currency; write them as 1234.5, and inspect again"
AS_LATE = "also a usual name of labels: remove it, or add it to labels, if it is not known beforehand"
ROW_NUMBER_FRACTION = 0.95
"""Distinct ids per row from which on a column only identifies rows."""
_OF_PEOPLE = re.compile(r"birth|born|(^|_)dob($|_)", re.IGNORECASE)
_FEW_ROWS = 1000
_LEAST_ROWS = 20
"""Rows from which on a column without any repeated value only identifies rows."""
_NEAR = 3.0
"""Absolute value up to which numbers are near 1, if they deviate from each other by _LEAST_DEVIATION at least."""
_LEAST_DEVIATION = 0.25
_EACH = 64
"""Distinct values up to which each has an id, next to the number; more are in buckets."""
_BUCKETS = 16


@dataclass(frozen=True, slots=True)
class Guess:
    """The probable role of a column, and the reason."""

    role: Role
    reason: str
    table: str | None = None
    """Column whose table this column's ids belong to."""
    label: Label | None = None
    """The label that the column is, with the rule for values that are not 0 and 1."""
    transform: str | None = None
    """The transform that brings a dense column's numbers near 1."""
    separator: str | None = None
    """The separator of the ids in a text."""
    padding: str | int | None = None
    """The value that fills lists up."""
    buckets: int | None = None
    """Ids of a dense column next to its numbers: so many buckets, 0 for an id of each value."""
    time: TimeHint | None = None
    """The properties of times."""
    doubt: str = ""
    """A question that the data leaves open, and the setting for one of its answers."""


def roles_of(profile: DatasetProfile, known: ParquetDataset | None, queries: Queries) -> dict[str, Guess]:
    """Return the role of each column, from the data set's own configuration or else from its name, type and values."""
    if known is not None:
        return {name: _known(name, known) for name in profile.columns}
    labels = _labels(profile)
    amounts = _amounts(profile, labels, queries)
    guesses = {}
    for column in profile.columns.values():
        guesses[column.name] = labels.get(column.name) or _guess(column, profile, amounts.get(column.name))
    guesses |= _shared(profile, guesses)
    return guesses | (_other_labels(profile, guesses) if labels else {})


def _amounts(profile: DatasetProfile, labels: dict[str, Guess], queries: Queries) -> dict[str, Amount]:
    """Return what columns of whole numbers are used for."""
    rules = [guess.label for guess in labels.values() if guess.label]
    is_text = {rule.name: profile.columns[rule.name].kind == "text" for rule in rules}
    label = next(((rule.name, positive_sql(rule, is_text[rule.name])) for rule in rules), None)
    columns = [
        column
        for column in profile.columns.values()
        if column.name not in labels and column.numbers and column.numbers.is_whole and not column.numbers.is_binary
    ]
    return amounts_of(queries, columns, label)


def name_of_buckets(name: str, columns: Collection[str]) -> str:
    """Return a name, which no column has, for the buckets of a column."""
    new_name = f"{name}_bucket"
    while new_name in columns:
        new_name += "s"
    return new_name


def _known(name: str, dataset: ParquetDataset) -> Guess:
    if name in dataset.label_names:
        return Guess("label", "")
    if name in {feature.name for feature in dataset.dense_features}:
        return Guess("dense", "")
    for feature in dataset.sparse:
        if name == (feature.column or feature.name):
            return Guess("sparse", "", feature.table or feature.name, separator=feature.separator)
    if name == dataset.weight:
        return Guess("weight", "")
    if isinstance(dataset.split, ColumnSplit) and name == dataset.split.column:
        return Guess("split", "")
    return Guess("unused", "")


def _labels(profile: DatasetProfile) -> dict[str, Guess]:
    """Return the column that is the label by its name, place and values; empty if none is clearly the one."""
    candidate = chosen_of(candidates_of(profile), profile)
    if candidate is None:
        return {}
    return {candidate.name: Guess("label", candidate.reason, label=candidate.label)}


def _other_labels(profile: DatasetProfile, guesses: dict[str, Guess]) -> dict[str, Guess]:
    """Return new guesses for features that may be labels too, since what is known as late may not be a feature."""
    return {
        other.name: replace(guesses[other.name], doubt="; ".join(filter(None, (guesses[other.name].doubt, AS_LATE))))
        for other in candidates_of(profile)
        if is_usual(other.name) and guesses[other.name].role in ("dense", "sparse")
    }


def _guess(column: ColumnProfile, profile: DatasetProfile, amount: Amount | None) -> Guess:
    split, numbers = profile.split, column.numbers
    if isinstance(split, ColumnSplit) and column.name == split.column:
        return Guess("split", "says train or eval")
    has_two = (numbers and numbers.is_binary) or (column.kind == "text" and column.distinct == 2)
    if has_two and not column.is_complete and is_usual(column.name):
        return Guess("unused", "a label without a value in some rows: leave these rows out, or declare several labels")
    if column.kind == "vector":
        return _vector(column)
    if not column.coverage:
        return Guess("unused", "it has no values")
    if column.kind == "other":
        return Guess("unused", f"{column.type} is neither numbers nor ids")
    if column.hints.time is not None:
        return _time(column)
    if column.kind == "time" or (column.count == 0 and (numbers is None or numbers.mean is None)):
        return Guess("unused", "it has no values")
    if column.hints.numbers_rows and not column.nulls:
        return Guess("unused", "it numbers the rows")
    if column.hints.are_written:
        return Guess("unused", WRITTEN)
    if numbers and numbers.is_binary:
        noun = "true and false" if column.type == "bool" else "0 and 1"
        return Guess("dense", noun) if column.is_complete else Guess("sparse", f"{noun}, and null, which has an id too")
    if column.kind == "number":
        has_ids = profile.source.format == "parquet"  # in texts, only what is written as an integer is an id
        return _number(column, amount if has_ids else None)
    if column.distinct == 1 and column.kind != "list" and not column.nulls:
        return Guess("unused", "always the same")
    if column.hints.separator is not None:
        return Guess(
            "sparse",
            f"texts of several ids, divided by {column.hints.separator}",
            separator=column.hints.separator,
            doubt="each text is a list: take out the separator if it is one id",
        )
    if amount is not None and (amount.is_named or amount.score >= LIKELY):
        return _amount(column, amount)
    if column.kind != "list" and _tells_rows_apart(column, profile.rows):
        differs = f"nearly every row has a different {'text' if column.kind == 'text' else 'id'}"
        return Guess("unused", _doubt(column, profile.source) or differs)
    values = "text, hashed when it is read" if _is_text(column) else "integers"
    if column.kind == "list":
        return Guess("sparse", f"lists of {values}", padding=_padding(column), doubt=_fillers(column))
    return (
        _amount(column, amount) if amount is not None else Guess("sparse", values, doubt=_doubt(column, profile.source))
    )


def _time(column: ColumnProfile) -> Guess:
    if _OF_PEOPLE.search(column.name):
        return Guess("unused", "a date of birth: write ages as numbers")
    reason = "a time: later ones never occur in training; parts of it do"
    return Guess("time", reason, time=column.hints.time)


def _vector(column: ColumnProfile) -> Guess:
    lengths = column.lengths
    if lengths is None or not lengths.greatest:
        return Guess("unused", "it has no values")
    if lengths.least != lengths.greatest:
        return Guess(
            "unused",
            f"lists of {lengths.least} to {lengths.greatest} numbers: a dense feature has lists of one length"
            + (", and null for a missing one" if not lengths.least else ""),
        )
    return Guess("dense", f"lists of {lengths.greatest} numbers")


def _padding(column: ColumnProfile) -> str | int | None:
    """Return the value that seems to fill lists up to one length."""
    lengths, filler = column.lengths, column.hints.filler
    if filler is None or lengths is None or not lengths.least == lengths.greatest > 1:
        return None
    return filler[0] if _is_text(column) else int(filler[0])


def _fillers(column: ColumnProfile) -> str:
    filler = column.hints.filler
    return f"{filler[0]} in {filler[1]:.0%} of them: set padding: {filler[0]} if it stands for none" if filler else ""


def _doubt(column: ColumnProfile, source: SourceFiles) -> str:
    """Return what a column of text may be instead of ids: numbers, but for some words."""
    if not column.hints.are_numbers:
        return ""
    markers = " and ".join(map(repr, column.hints.words))
    remedy = (
        "if they stand for none, add them to csv.nulls"
        if markers and source.format == "csv"
        else f"write numbers, as pandas.to_numeric(table[{column.name!r}], errors='coerce') returns"
    )
    return f"numbers as text{markers and f', but for {markers}'}: {remedy}"


def _number(column: ColumnProfile, amount: Amount | None) -> Guess:
    numbers = column.numbers
    if numbers is None or numbers.mean is None or numbers.least == numbers.greatest:
        return Guess("unused", "always the same")
    if column.name.lower() in WEIGHTS and column.is_complete and numbers.least is not None and numbers.least >= 0:
        return Guess("weight", "a usual name of weights")
    if amount is not None:
        return _amount(column, amount)
    return Guess("dense", "numbers with a fraction", transform=_transform(numbers, numbers.deviation or 0.0))


def _amount(column: ColumnProfile, amount: Amount) -> Guess:
    """Return the guess for whole numbers."""
    numbers, values = column.numbers, len(amount.values.numbers)
    assert numbers is not None
    if amount.use == "ids":
        if values > ROW_NUMBER_FRACTION * amount.values.rows.sum() >= _LEAST_ROWS:
            return Guess("unused", "nearly every row has a different id")
        doubt = "if this is an amount, list it in dense" if values > FEW and amount.score > -SURE else ""
        return Guess("sparse", "integers", doubt=doubt)
    transform = _transform(numbers, amount.values.deviation)
    if amount.use == "number":
        return Guess("dense", "amounts", transform=transform)
    return Guess(
        "dense",
        "amounts or ids",
        transform=transform,
        buckets=0 if values <= _EACH else _BUCKETS,
        doubt="" if values <= FEW else "if these are codes, list it in sparse alone",
    )


def _is_text(column: ColumnProfile) -> bool:
    return column.kind == "text" or "string" in column.type or "binary" in column.type


def _transform(numbers: NumberStatistics, deviation: float) -> str | None:
    """Return the transform that brings numbers near 1, if they are not."""
    assert numbers.least is not None
    assert numbers.greatest is not None
    largest = max(abs(numbers.least), abs(numbers.greatest))
    if largest <= _NEAR and deviation >= _LEAST_DEVIATION:
        return None
    return transform_for(numbers.mean or 0.0, deviation, largest)


def _tells_rows_apart(column: ColumnProfile, rows: int) -> bool:
    if column.distinct == column.count >= _LEAST_ROWS:
        return True
    return rows >= _FEW_ROWS and (column.distinct or 0) > ROW_NUMBER_FRACTION * rows


def _shared(profile: DatasetProfile, guesses: dict[str, Guess]) -> dict[str, Guess]:
    """Return new guesses for lists whose name has the name of a column with ids of the same kind in it."""
    sparse = [profile.columns[name] for name, guess in guesses.items() if guess.role == "sparse"]
    guesses_of_lists = {}
    for column in sparse:
        for other in sparse:
            stem, guess = re.sub(r"[\W_]*id$", "", other.name.lower()), guesses[column.name]
            are_alike = column.type == f"list<{other.type}>" or (guess.separator and _fit(column, other))
            if len(stem) > 1 and stem in column.name.lower() and are_alike:
                doubt = f"if these are ids of {other.name}, set table: {other.name}"
                guesses_of_lists[column.name] = replace(guess, doubt="; ".join(filter(None, (guess.doubt, doubt))))
    return guesses_of_lists


def _fit(texts: ColumnProfile, other: ColumnProfile) -> bool:
    """Return True if the ids in divided texts may be those of another column."""
    if other.kind == "text":
        return other.name != texts.name
    return other.kind == "integer" and all(INTEGER.match(value) for value, _ in texts.top)
