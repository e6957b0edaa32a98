"""The profile of a data set on the screen."""

from collections.abc import Mapping
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from persia_cli.commands.screen import labelled, paragraph, say, size
from persia_cli.commands.tables import bars, columns, print_table
from persia_cli.data.inspect.inspection import Inspection
from persia_cli.data.inspect.profile import ColumnProfile
from persia_cli.data.inspect.roles import Guess
from persia_cli.data.inspect.split_rule import text_of
from persia_cli.errors import count
from persia_cli.plan.capacity import TableNeed

UNKNOWN = "-"
_LONGEST = 24


def show_profile(
    console: Console, inspection: Inspection, needs: Mapping[str, TableNeed], has_suggestion: bool
) -> None:
    """Print tables of the columns, of the splits' differences, and of the memory that embedding tables would take.

    The suggested configuration follows, if `has_suggestion` and the data set has none.
    """
    has_suggestion = has_suggestion and inspection.known is None
    profile, source = inspection.profile, inspection.profile.source
    labelled(console, "data", f"{count(len(source.files), 'file')} at {source.path}, {size(source.nbytes)}, "
             f"{count(profile.rows, 'row')} in {count(source.row_groups, 'row group')}")  # fmt: skip
    train, evaluation = profile.split_rows["train"], profile.split_rows["eval"]
    labelled(console, "splits", f"{train:,} training and {evaluation:,} evaluation rows: {text_of(profile.split)}"
             f"{_of_training(inspection)}")  # fmt: skip
    say(console, "")
    _show_columns(console, inspection)
    if train and evaluation:
        say(console, "")
        _show_differences(console, inspection)
    if needs:
        say(console, "")
        _show_needs(console, needs)
    say(console, "")
    if has_suggestion:
        say(console, inspection.suggestion.rstrip("\n"))
        say(console, "")


def _of_training(inspection: Inspection) -> str:
    """Return a clause on the split of training, where it is not the compared one."""
    if inspection.profile.split is not None:
        return ""
    split = yaml.safe_load(inspection.suggestion)["split"]
    return f"; training splits by {yaml.safe_dump(split, default_flow_style=True, sort_keys=False, width=1000).strip()}"


def as_object(inspection: Inspection, needs: Mapping[str, TableNeed]) -> dict[str, Any]:
    """Return all statistics for JSON."""
    profile, source = inspection.profile, inspection.profile.source
    labels = [name for name, guess in inspection.roles.items() if guess.role == "label"]
    return {
        "data": source.path,
        "files": len(source.files),
        "bytes": source.nbytes,
        "rows": profile.rows,
        "row_groups": source.row_groups,
        "columns": {name: _column(inspection, column) for name, column in profile.columns.items()},
        "splits": {
            split: {"rows": rows, **{f"{name}_rate": profile.columns[name].means.get(split) for name in labels}}
            for split, rows in profile.split_rows.items()
        },
        "tables": {
            name: {"rows": need.rows, "bytes": need.nbytes}
            | ({} if need.fitting is None else {"fitting": need.fitting})
            for name, need in needs.items()
        },
        "suggestion": inspection.suggestion,
    }


def _column(inspection: Inspection, column: ColumnProfile) -> dict[str, Any]:
    guess, lengths = inspection.roles[column.name], column.lengths
    numbers = column.numbers if _is_numeric(column, guess) else None
    return {
        "type": column.type,
        "role": guess.role,
        "reason": guess.reason or None,
        "table": guess.table,
        "nulls": column.nulls,
        "coverage": column.coverage,
        "filler": column.hints.filler[0] if column.hints.filler else None,
        "filler_fraction": column.hints.filler[1] if column.hints.filler else None,
        "distinct": column.distinct,
        "most_frequent": column.top[0][0] if column.top else None,
        "most_frequent_fraction": column.top[0][1] if column.top else None,
        "least": numbers.least if numbers else None,
        "mean": numbers.mean if numbers else None,
        "greatest": numbers.greatest if numbers else None,
        "not_finite": numbers.not_finite if numbers else None,
        "length_mean": lengths.mean if lengths else None,
        "length_max": lengths.greatest if lengths else None,
        "unseen_ids": column.unseen_ids,
        "unseen_lookups": column.unseen_lookups,
        "top": dict(column.top),
        "length_counts": lengths.counts if lengths else None,
    }


def _show_columns(console: Console, inspection: Inspection) -> None:
    shown = columns("column", "type", "use", "filled", "distinct", "most frequent", "share", "values")
    for number in (1, 2, 5, 7):
        shown.columns[number].justify = "left"
    for column in inspection.profile.columns.values():
        guess = inspection.roles[column.name]
        top, fraction = column.top[0] if column.top else ("", None)
        shown.add_row(
            Text(column.name),
            Text(column.type),
            Text(guess.role, "" if guess.role != "unused" else "dim"),
            f"{column.coverage:.0%}" if column.coverage in (0.0, 1.0) else f"{column.coverage:.2%}",
            UNKNOWN if column.distinct is None else f"{column.distinct:,}",
            Text(top if len(top) <= _LONGEST else f"{top[:_LONGEST]}…"),
            UNKNOWN if fraction is None else f"{fraction:.1%}",
            _figures(column, guess),
        )
    print_table(console, shown)
    if any(column.lengths for column in inspection.profile.columns.values()):
        paragraph(console, "bars: lists of 0, 1, 2-3, 4-7, … ids", style="dim")


def _is_numeric(column: ColumnProfile, guess: Guess) -> bool:
    """Return True if a column's values are numbers and not only names of things."""
    return column.kind == "number" or guess.role in ("label", "dense", "weight")


def _figures(column: ColumnProfile, guess: Guess) -> str:
    filler = column.hints.filler
    padding = (
        ""
        if filler is None or guess.role != "sparse" or column.kind != "list"
        else f"{filler[0] or 'empty text'} may be padding: {filler[1]:.1%} "
    )
    return padding + _sizes(column, guess)


def _sizes(column: ColumnProfile, guess: Guess) -> str:
    if column.lengths:
        lengths = column.lengths
        noun = "numbers" if column.kind == "vector" else "ids"
        return f"{lengths.least}…{lengths.greatest} {noun}, mean {lengths.mean:.1f} {bars(lengths.counts)}"
    if column.numbers and column.numbers.mean is not None and _is_numeric(column, guess):
        numbers = column.numbers
        return f"{numbers.least:.4g} … {numbers.greatest:.4g}, mean {numbers.mean:.4g}"
    return ""


def _show_differences(console: Console, inspection: Inspection) -> None:
    shown = columns("column", "training mean", "evaluation mean", "unseen ids", "of look-ups")
    for name, column in inspection.profile.columns.items():
        guess = inspection.roles[name]
        if guess.role in ("split", "time", "unused"):
            continue
        is_sparse = guess.role == "sparse"
        shown.add_row(
            Text(name),
            *(_number(column.means.get(split) if _is_numeric(column, guess) else None) for split in ("train", "eval")),
            _percent(column.unseen_ids if is_sparse else None),
            _percent(column.unseen_lookups if is_sparse else None),
        )
    print_table(console, shown)


def _show_needs(console: Console, needs: Mapping[str, TableNeed]) -> None:
    limited = any(need.fitting is not None for need in needs.values())
    shown = columns("table", "rows", "memory", *(["fitting"] if limited else []))
    for name, need in needs.items():
        fitting = [f"{need.fitting:,}"] if need.fitting is not None else []
        shown.add_row(Text(name), f"{need.rows:,}", size(need.nbytes), *fitting)
    rows, nbytes = sum(need.rows for need in needs.values()), sum(need.nbytes for need in needs.values())
    shown.add_row("all", f"{rows:,}", size(nbytes), style="bold")
    print_table(console, shown)
    if any(need.fitting is not None and need.fitting < need.rows for need in needs.values()):
        paragraph(console, f"This memory is too small for all ids: set embedding.memory to {size(nbytes)} or more.")


def _percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{fraction:.1%}"


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"
