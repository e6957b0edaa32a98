"""The base class of settings, and the types of their values: numbers have limits, so that typos are found early."""

from datetime import date
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Node(BaseModel):
    """A validated piece of configuration; the docstring under a field is its help text."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def refuse_flags(value: Any) -> Any:
    """Refuse true and false, which Python accepts as 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "a number is expected")
    return value


NUMBER = BeforeValidator(refuse_flags)
"""Rejects booleans. Must follow the bounds, or the JSON Schema loses them."""

CHANGEABLE = object()
"""The mark of a field that a resumed run may change."""
T = TypeVar("T")
Changeable = Annotated[T, CHANGEABLE]
"""The type of a key that `persia resume` may give another value, with all keys below it; it may not change the others.

Such a key decides how long, where and how fast a run trains, or what is evaluated, recorded and saved. In a step it
changes at most the rounding of sums, statistics over `accumulate`'s parts, and which rows are evicted. Or it makes data
readable that were an error.
"""

MOST = 10**12
"""A limit beyond the samples, steps or rows of any job."""
Count = Annotated[int, Field(gt=0, le=MOST), NUMBER]
"""A number of at least one."""
Amount = Annotated[int, Field(ge=0, le=MOST), NUMBER]
"""A number that may be zero."""
Few = Annotated[int, Field(gt=0, le=1024), NUMBER]
"""A number of parts that each cost something: replicas, threads, layers, heads."""
Dim = Annotated[int, Field(gt=0, le=1024), NUMBER]
"""Number of columns of an embedding row."""
Width = Annotated[int, Field(gt=0, le=65536), NUMBER]
"""Number of columns of a layer."""
Widths = tuple[Width, ...]
SomeWidths = Annotated[tuple[Width, ...], Field(min_length=1)]
AUTO = Literal["auto"]
"""A value that the plan of a training settles by the data (`persia_cli.plan.settled`)."""
BatchSize = Annotated[int, Field(gt=0, le=2**24), NUMBER]
Number = Annotated[float, Field(allow_inf_nan=False), NUMBER]
Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False), NUMBER]
"""A number above 0 whose square fits float32; greater ones are typos."""
NonNegative = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False), NUMBER]
NotTiny = Annotated[float, Field(ge=1e-30, le=1e6, allow_inf_nan=False), NUMBER]
"""A constant that keeps a denominator from 0, in float32 too."""
Decay = Annotated[float, Field(ge=0, lt=1), NUMBER]
Seconds = Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False), NUMBER]
"""A waiting time, at most a week."""


def _rising(steps: tuple[int, int]) -> tuple[int, int]:
    if steps[0] >= steps[1]:
        raise ValueError("expected [FIRST, LAST] with FIRST below LAST, such as [20, 220]")
    return steps


StepRange = Annotated[tuple[Amount, Amount], AfterValidator(_rising)]
"""The steps from the first up to, but without, the last."""


def _texts_of_dates(value: Any) -> Any:
    """Return dates, which YAML makes of 2024-01-31 without quotes, as their text; other values unchanged."""
    if isinstance(value, list | tuple):
        return [_texts_of_dates(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value


Values = Annotated[str | int | tuple[str | int, ...], BeforeValidator(_texts_of_dates)]
