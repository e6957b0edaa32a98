"""File formats of samples, recognised by file names."""

from collections.abc import Sequence
from typing import Literal

from persia_cli.data.files import DataFile

Format = Literal["parquet", "csv", "jsonl"]

SUFFIXES: dict[Format, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson"),
}
"""The endings of file names that a search of folders finds."""
NOUNS: dict[Format, str] = {"parquet": "Parquet", "csv": "CSV", "jsonl": "JSON Lines"}
_COMPRESSED = (".gz", ".zst", ".bz2")


def format_of(path: str) -> Format | None:
    """Return the format that a file name stands for; None if its ending is unknown."""
    plain = path.lower()
    for ending in _COMPRESSED:
        plain = plain.removesuffix(ending)
    if plain.endswith(".json"):
        return "jsonl"
    found = (name for name, endings in SUFFIXES.items() if plain.endswith(endings))
    return next(found, None)


def of_one_format(files: Sequence[DataFile], wanted: Literal["auto"] | Format) -> tuple[Format, tuple[DataFile, ...]]:
    """Return the wanted format and its files; `auto` takes the first of Parquet, CSV and JSON Lines that is found.

    A file with an unknown ending, which the user has named, has the wanted format; Parquet for `auto`.
    """
    default: Format = "parquet" if wanted == "auto" else wanted
    own = {file.path: format_of(file.path) or default for file in files}
    present = set(own.values())
    chosen = next((name for name in SUFFIXES if name in present), default) if wanted == "auto" else wanted
    return chosen, tuple(file for file in files if own[file.path] == chosen)
