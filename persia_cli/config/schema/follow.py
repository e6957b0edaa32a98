"""Data that grows: how a training follows it, and when it ends."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from persia_cli.config.schema.base import NUMBER, Changeable, Count, Node, Seconds
from persia_cli.config.schema.split import Time
from persia_cli.config.schema.time_format import TimeFormat

Trap = Literal["late_file", "unfit_file", "not_append", "deletes", "lost_cursor"]
"""A change of the data other than a new file at its end; to follow it would omit or repeat samples."""


class Follow(Node):
    """Files that come while the training runs; `true` is short for the defaults.

    They are trained once, in the order in which they come: those of about `rows` rows together are a *portion*, whose
    rows are shuffled.
    """

    rows: Changeable[Annotated[int, Field(gt=0, le=2**32), NUMBER]] = 2**20
    """Rows of a portion, at least, unless it has waited for `max_wait_s`; it ends with a file."""
    max_wait_s: Changeable[Seconds] = 60.0
    """Seconds after the arrival of its first file when a portion ends, so that the last batch of it may be short."""
    poll_s: Changeable[Seconds] = 1.0
    """Seconds between two looks for new files."""
    time: str | None = None
    """Column with the time of a sample, in the statistics of Parquet files; `behind_data_s` and `train.until.time` need
    it."""
    format: TimeFormat | None = None
    """The format of times in numbers, as for sparse features, such as `seconds`."""
    skip: Changeable[tuple[Trap, ...]] = ()
    """Traps that are recorded and passed over, instead of ending the training.

    `late_file`: a file whose name is before that of one already trained. `unfit_file`: a file that cannot be read, or
    whose columns differ. Of tables: `not_append`: a snapshot that does more than add files; `deletes`: files of deleted
    rows; `lost_cursor`: the next snapshot has expired.
    """


def _follow(value: Any) -> Any:
    """Return the keys that `true` and `false` stand for; other values unchanged."""
    return {} if value is True else None if value is False else value


Following = Annotated[Follow | None, BeforeValidator(_follow, json_schema_input_type=Follow | bool | None)]


class Until(Node):
    """The end of a training on data that grows; the first that is reached."""

    samples: Count | None = None
    """Samples trained; the last step is whole."""
    time: Time | None = None
    """Time of the data, an integer in seconds since 1970: the first portion with a sample of this time or later is the
    last one."""
    idle_s: Seconds | None = None
    """Seconds without a new file after which all that there is has been trained."""

    @model_validator(mode="after")
    def _names_an_end(self) -> Self:
        if self.samples is None and self.time is None and self.idle_s is None:
            raise ValueError("give samples, time or idle_s; without train.until a training goes on until a signal")
        return self
