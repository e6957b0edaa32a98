"""What a user is notified of by the counters of tables: full tables, rows left out, gradients refused."""

from collections.abc import Iterator, Mapping, Sequence

from persia_cli.config.schema import Run
from persia_cli.plan.embedding import embedding_layout

NOTIFICATIONS = {
    "evicted": (
        "note",
        "{room} is full: new ids replace rows that come less often; raise {budget} to keep more of them",
    ),
    "refused": ("warning", "{room} is full and refuses new ids, which count as zeros; raise {budget}"),
    "left_out": (
        "warning",
        "{room} could not take all rows of the checkpoint: those used longest ago were left out; raise {budget} to "
        "load all of them",
    ),
    "gradients_refused": (
        "warning",
        "table {table} received gradients that are not finite or are beyond 1.8e19; those rows were not updated",
    ),
}
"""Counters of a table that the user is notified of when they first leave 0: the kind of event and its text."""
ALL_IN_USE = (
    "{room} is too small for some batches: every row that a new id could have replaced was in use in the same step, so "
    "the id counts as zeros; raise {budget}"
)
"""Text for the counter "refused" where full tables evict the rows used longest ago."""
USED_LONGEST_AGO = "{room} is full: new ids replace the rows used longest ago; raise {budget} to keep more of them"
NOT_OFTEN_ENOUGH = (
    "{room} is full: an id that comes less often than those that have a row counts as zeros; raise {budget} to keep "
    "more of them"
)
"""Texts for the counters "evicted" and "refused" by what full tables do."""


class TableNotes:
    """The notes and warnings about the tables of a run; tables that share room are named together."""

    def __init__(self, run: Run) -> None:
        """Find the room of each table, and the setting that bounds it."""
        self._notifications = dict(NOTIFICATIONS)
        if run.embedding.when_full == "evict_lru":
            self._notifications["refused"] = ("warning", ALL_IN_USE)
            self._notifications["evicted"] = ("note", USED_LONGEST_AGO)
        elif run.embedding.when_full != "refuse":
            self._notifications["refused"] = ("note", NOT_OFTEN_ENOUGH)
        self._budget = "embedding.memory" if run.embedding.capacity is None else "embedding.capacity"
        self._rooms = {
            table.name: _room([each.name for each in group.tables])
            for group in embedding_layout(run).groups
            for table in group.tables
        }

    def of(self, table: str, counters: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield the kind of event and the text for each counter of the table that is not 0."""
        room = self._rooms.get(table, f"table {table}")
        for counter, (event, template) in self._notifications.items():
            if counters.get(counter):
                yield event, template.format(table=table, room=room, budget=self._budget)


def _room(tables: Sequence[str]) -> str:
    """Name the room for rows that the tables of a feature group share: any of them may have any row."""
    if len(tables) == 1:
        return f"table {tables[0]}"
    return f"the shared room of {len(tables)} tables ({', '.join([*tables[:3], *(['…'] if len(tables) > 3 else [])])})"
