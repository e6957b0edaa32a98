"""What the columns of a prepared data set are made of: one declaration for preparation and for requests."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from persia_cli.config.schema.base import NUMBER, Node

Number = Annotated[float, Field(allow_inf_nan=False), NUMBER]


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


Step = Literal["log1p", "log_buckets", "float32", "text"] | Subtract | Divide | FloorDivide | AtLeast
"""What becomes of a number: `log1p` is log(1 + x); `log_buckets` floor(log(x)^2) above 2; `float32` rounds; `text`, the
last one, makes an id of its decimal text, hashed under the column's name."""


class RawColumns(Node):
    """Columns that are made in the same way, each of one field of the source."""

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """The columns."""
    field: str | None = None
    """The field of the source, and of requests; by default the column's name."""
    read: Literal["integer", "number", "text", "hexadecimal"]
    """How the field's text is read; `text` is hashed to an id under the field's name."""
    digits: Annotated[int, Field(ge=0, le=16), NUMBER] = 0
    """Digits of hexadecimal ids; 0 for 1 to 16."""
    missing: Number | None = None
    """Number in place of an empty field."""
    steps: tuple[Step, ...] = ()
    """What becomes of a number, in this order."""

    @model_validator(mode="after")
    def _steps_are_of_numbers(self) -> Self:
        if self.read in ("text", "hexadecimal") and (self.steps or self.missing is not None):
            raise ValueError(f"steps and missing are for numbers, and {self.columns[0]} is read as {self.read}")
        if "text" in self.steps[:-1]:
            raise ValueError(f"the step text of {self.columns[0]} makes an id, and must be the last one")
        return self

    def field_of(self, column: str) -> str:
        """Return the field that a column is made of."""
        return self.field or column
