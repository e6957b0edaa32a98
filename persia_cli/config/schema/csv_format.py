"""The format of CSV files."""

from typing import Annotated, Literal

from pydantic import Field

from persia_cli.config.schema.node import Node

Character = Annotated[str, Field(min_length=1, max_length=1)]


class CsvFormat(Node):
    """The format of CSV files."""

    delimiter: Character | None = None
    """Character between fields; by default a comma, in files named .tsv a tab."""
    header: Literal[True] | tuple[str, ...] = True
    """True if the first line names the columns; otherwise the names."""
    quote: Character | None = '"'
    """Quote around fields that hold delimiters or line ends; null: no field is quoted."""
    nulls: tuple[str, ...] = ("",)
    """Fields that stand for a missing value."""
    text: tuple[str, ...] = ()
    """Columns that are text even if they look like another type."""
