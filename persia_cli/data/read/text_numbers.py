"""Columns of text that seem to be meant as numbers, and what to do about them."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persia_cli.data.read.files import Format

_COMMA = r"^\s*[+-]?[0-9]*(,[0-9]+)?\s*$"
_NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
_MOST_WORDS = 5
"""Number of different texts that may stand for a missing number."""


def meant_as_numbers(name: str, column: Any, kind: Format, nulls: tuple[str, ...]) -> str | None:
    """Return a sentence on some texts of a column that are numbers with a comma, or numbers and a few texts.

    `nulls` are the texts that stand for a missing value so far. None for other texts.
    """
    texts = column.cast(pa.large_string()).drop_null().combine_chunks()
    with_comma = pc.match_substring(texts, ",")
    if pc.all(pc.match_substring_regex(texts, _COMMA)).as_py() and pc.any(with_comma).as_py():
        return (
            f"column {name} holds numbers with a comma, such as {texts.filter(with_comma)[0].as_py()!r}; write them "
            "with a point, as pandas.read_csv(FILE, sep=';', decimal=',').to_parquet('data.parquet') does"
        )
    is_number = pc.match_substring_regex(texts, _NUMBER)
    words = pc.unique(texts.filter(pc.invert(is_number)))
    if not pc.any(is_number).as_py() or not 0 < len(words) <= _MOST_WORDS:
        return None
    shown = ", ".join("'" + word.replace("'", "''") + "'" for word in [*nulls, *words.to_pylist()])
    what = "word" if len(words) == 1 else "words"
    told = f"column {name} holds numbers and the {what} {', '.join(map(repr, words.to_pylist()))}"
    if kind == "csv":
        return f"{told}; list the markers of missing values: dataset.csv.nulls=[{shown}]"
    return f"{told}; write null in place of what stands for a missing value"
