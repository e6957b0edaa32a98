"""Sources of the columns of a prepared data set: one declaration for preparation and for requests."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import NUMBER, Node, Number


class Subtract(Node):
    """A step that subtracts a number."""

    subtract: Number
    """The number."""


class Divide(Node):
    """A step that divides by a number."""

    divide: Number
    """The number."""


class FloorDivide(Node):
    """A step that divides by a number and rounds down."""

    floor_divide: Number
    """The number."""


class AtLeast(Node):
    """A step that raises lower values to a number."""

    at_least: Number
    """The number."""


class Remainder(Node):
    """A step that divides by a number and keeps what remains."""

    remainder: Annotated[int, Field(ge=1), NUMBER]
    """The number."""


Step = (
    Literal["log1p", "log_buckets", "hours", "float32", "text"]
    | Subtract | Divide | FloorDivide | Remainder | AtLeast
)  # fmt: skip
"""What becomes of a number: `log1p` is log(1 + x); `log_buckets` floor(log(x)^2) above 2; `hours` the hours since 1970
of a time written as YYMMDDHH; `float32` rounds; `text`, the last one, makes an id of its decimal text, hashed under the
column's name."""


class RawColumns(Node):
    """Columns that are made in the same way, each of one field of the source."""

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """The columns."""
    field: str | None = None
    """The field of the source, and of requests; by default the column's name."""
    read: Literal["integer", "number", "absence", "text", "texts", "hexadecimal"]
    """Interpretation of the field: `text` is hashed to an id, `texts` is a list of such, `absence` of a number is 1
    where the field is empty and 0 elsewhere."""
    table: str | None = None
    """Table under whose name text is hashed; by default the field's name."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """Separator of `texts` in a file; a request has them as a list."""
    stripped: bool = False
    """True if blanks around a text are removed, also around each of `texts`."""
    digits: Annotated[int, Field(ge=0, le=16), NUMBER] = 0
    """Digits of hexadecimal ids; 0 for 1 to 16."""
    missing: Number | None = None
    """Number in place of an empty field."""
    steps: tuple[Step, ...] = ()
    """Transformations of a number, in this order."""

    @model_validator(mode="after")
    def _steps_are_of_numbers(self) -> Self:
        if self.read not in ("integer", "number") and (self.steps or self.missing is not None):
            raise ValueError(f"steps and missing are for numbers, and {self.columns[0]} is read as {self.read}")
        if (self.separator is not None) != (self.read == "texts"):
            raise ValueError(f"texts have a separator, and nothing else has; {self.columns[0]} is read as {self.read}")
        if self.table is not None and self.read not in ("text", "texts"):
            raise ValueError(f"text is hashed under the name of a table, and {self.columns[0]} is no text")
        if "text" in self.steps[:-1]:
            raise ValueError(f"the step text of {self.columns[0]} makes an id, and must be the last one")
        if self.read == "integer" and (wide := [number for number in self._numbers() if abs(number) >= 2**63]):
            raise ValueError(f"{wide[0]} does not fit into the 64 bits of integers, as which {self.columns[0]} is read")
        return self

    def _numbers(self) -> list[float]:
        """Return the numbers in `missing` and in the steps."""
        steps = [number for step in self.steps if isinstance(step, Node) for number in step.model_dump().values()]
        return steps if self.missing is None else [self.missing, *steps]

    @property
    def is_same_for_all(self) -> bool:
        """Return True if a value becomes the same in several columns: it is not hashed under the column's name."""
        return len(self.columns) > 1 and self.read not in ("text", "texts") and "text" not in self.steps

    def field_of(self, column: str) -> str:
        """Return the field that a column is made of."""
        return self.field or column

    def table_of(self, column: str) -> str | None:
        """Return the name that seeds the hash of text in a column; None where nothing is hashed."""
        if self.read in ("text", "texts"):
            return self.table or self.field_of(column)
        return column if "text" in self.steps else None
