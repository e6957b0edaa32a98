"""Histories: what a sample's user did before, gathered from events while samples are read."""

from typing import Annotated, Literal

from pydantic import Field

from persia_cli.config.schema.base import Changeable, Count, Node
from persia_cli.config.schema.time_format import TimeFormat

HistoryName = Annotated[str, Field(pattern=r"^[^.]+$")]
"""The part before the dot in the names of a history's columns."""
Ties = Literal["strict", "file_order"]


class History(Node):
    """The newest earlier events of each sample's user; the sparse feature NAME.COLUMN has the ids of a column.

    Samples whose files have these lists themselves, in columns NAME.COLUMN, keep them: so does a log of requests.
    """

    path: Changeable[str | tuple[str, ...] | None] = None
    """Files with one event a row; by default those of `dataset.path`. The run's configuration keeps them, so a model
    that is evaluated on other samples still takes histories from the events that it was trained with."""
    user: str
    """Column of users, in the events and in the samples. An event or a sample without a user has no history."""
    time: str
    """Column of dates, timestamps, texts such as 2024-02-01T12:00:00, or integers, in both. An event without a time is
    in no history."""
    format: TimeFormat | None = None
    """The format of times in texts or numbers, as for sparse features; without it, integers are compared unchanged."""
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """Columns of the events with one id each; an event without one is in no history."""
    max_length: Count
    """Events per sample, the newest ones; a feature of the history with its own `max_length` has fewer."""
    ties: Ties | None = None
    """`strict`, the default: only events of an earlier time. `file_order`, the default for windows: events of the same
    time in earlier rows too, if the sample itself is one of the events."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path."""
        return () if self.path is None else (self.path,) if isinstance(self.path, str) else self.path


class Windows(Node):
    """Training samples of a history's events, such that each event but a user's first is in one sample a target.

    They are a user's newest training event, and of the ones before it every `max_length`-th; all others are only in
    their histories. Rows whose label is not 1 are no events, since all events of a window count as positives.
    """

    kind: Literal["windows"]
    """`windows`: for networks that learn from all positions of a sequence."""
    of: str
    """The history; its events are the samples."""
