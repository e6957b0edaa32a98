"""The rule that splits rows into training and evaluation, found from files and columns if the user gives none."""

from pathlib import PurePosixPath

import pyarrow as pa

from persia_cli.config.schema.split import ColumnSplit, EverySplit, FileSplit, HashSplit, LastSplit, Split, TimeSplit
from persia_cli.control.position import SplitName
from persia_cli.data.inspect.files import SourceFiles
from persia_cli.data.inspect.queries import ROW, Queries
from persia_cli.data.read.arrow_types import class_of, is_text, plain_type
from persia_cli.data.read.files import find_files, locate
from persia_cli.data.read.times import TIMES, microseconds

COLUMNS = ("split", "part", "subset", "partition", "fold", "set", "phase")
"""Usual names of columns that name the split."""
EVALUATING = ("eval", "valid", "val", "test")
"""Usual beginnings of evaluation files and values, the most likely first; those of training begin with `train`."""


def split_of(queries: Queries, split: Split | None) -> Split | None:
    """Return the rule of `split`; without it that of the columns' values, or else of the files' names.

    None if nothing defines one, or SQL cannot express it; then the last fifth counts as evaluation.
    """
    if isinstance(split, TimeSplit | HashSplit | LastSplit):
        return None
    return split or _by_column(queries) or _by_name(queries.source)


def text_of(split: Split | None) -> str:
    """Return the rule, for people."""
    match split:
        case None:
            return "the last fifth, for the comparison below"
        case ColumnSplit(column=column, eval=values):
            return f"where column {column} is {values}"
        case FileSplit(eval=patterns):
            return f"files {', '.join(patterns)}"
        case EverySplit(n=n, offset=offset):
            return f"every {n}th row, from row {offset} on"
        case _:
            return "all rows evaluate"


def sql_of(split: Split | None, queries: Queries) -> str:
    """Return SQL for 0 where a row trains, 1 where it evaluates, and NULL where it does neither."""
    match split:
        case None:
            return f"CASE WHEN {ROW} < {queries.total * 4 // 5} THEN 0 ELSE 1 END"
        case ColumnSplit():
            evaluates = _is_one_of(queries, split, "eval")
            trains = "true" if split.train is None else _is_one_of(queries, split, "train")
            return f"CASE WHEN {evaluates} THEN 1 WHEN {trains} THEN 0 END"
        case FileSplit():
            numbers = [_numbers_of(queries.source, patterns) for patterns in (split.eval, split.train)]
            return f"CASE WHEN file IN ({numbers[0]}) THEN 1 WHEN file IN ({numbers[1]}) THEN 0 END"
        case EverySplit(n=n, offset=offset):
            return f"CASE WHEN ({ROW} - {offset}) % {n} = 0 THEN 1 ELSE 0 END"
        case _:
            return "1"


def _is_one_of(queries: Queries, split: ColumnSplit, name: SplitName) -> str:
    """Return SQL that is true where the split column has one of a split's values: equal times, or equal texts."""
    column, kind = queries.column(split.column), queries.source.schema.field(split.column).type
    if class_of(plain_type(kind)) in TIMES:
        times = microseconds(pa.array(map(str, split.values(name)), pa.string())).to_pylist()
        zoned = "::TIMESTAMPTZ" if getattr(plain_type(kind), "tz", None) else ""  # of nanoseconds DuckDB knows no epoch
        return f"epoch_us({column}{zoned}) IN ({', '.join(map(str, times))})"
    texts = ", ".join("'" + str(value).replace("'", "''") + "'" for value in split.values(name))
    return f"{column}::VARCHAR IN ({texts})"


def _numbers_of(source: SourceFiles, patterns: tuple[str, ...]) -> str:
    """Return the numbers of the files that match patterns, for SQL; -1 is the number of no file."""
    root = locate(source.path)
    wanted = {file.path for pattern in patterns for file in find_files(root.below(pattern))}
    return ", ".join(["-1", *(str(number) for number, file in enumerate(source.files) if file.name in wanted)])


def _by_column(queries: Queries) -> ColumnSplit | None:
    schema = queries.source.schema
    for name in COLUMNS:
        if name not in schema.names or not is_text(plain_type(schema.field(name).type)):
            continue
        begins = " OR ".join(f"starts_with(lower(v), '{word}')" for word in ("train", *EVALUATING))
        values = f"SELECT DISTINCT {queries.column(name)}::VARCHAR AS v FROM {queries.tables}"
        values_there = queries.run(f"{values} WHERE {begins} ORDER BY v LIMIT 1000")
        train, evaluation, test = _parts([value for (value,) in values_there])
        if train and evaluation:
            return ColumnSplit(kind="column", column=name, train=train, eval=evaluation, test=test)
    return None


def _by_name(source: SourceFiles) -> FileSplit | None:
    location = locate(source.path)
    if location.is_pattern or location.members is not None:
        return None  # patterns of a split by files are relative to a folder
    root = PurePosixPath(location.path)
    tops = {PurePosixPath(file.name).relative_to(root).parts[:1] for file in source.files}
    train, evaluation, test = _parts(sorted(top[0] for top in tops if top))
    if not train or not evaluation:
        return None
    word = next(word for word in EVALUATING if evaluation.lower().startswith(word))
    tests = (f"{test[:4]}*",) if test else ()
    return FileSplit(kind="files", train=(f"{train[:5]}*",), eval=(f"{evaluation[: len(word)]}*",), test=tests)


def _parts(names: list[str]) -> tuple[str | None, str | None, str | None]:
    """Return the names of the training, the evaluation and the test split by their usual beginnings."""
    train, *others = (
        next((name for name in names if name.lower().startswith(word)), None) for word in ("train", *EVALUATING)
    )
    evaluation = next(filter(None, others), None)
    return train, evaluation, others[-1] if others[-1] != evaluation else None
