"""The notifications of users by the counters of tables: full tables, rows left out, gradients refused."""

from collections.abc import Iterator, Mapping, Sequence

from persia_cli.config.schema import Run
from persia_cli.plan.embedding import embedding_layout

NOTIFICATIONS = {
    "evicted": (
        "note",
        "{memory} is full: only the ids that come most often keep a row, and others count as zeros; raise {budget} "
        "(persia data inspect counts the ids)",
    ),
    "refused": ("warning", "{memory} is full and refuses new ids, which count as zeros; raise {budget}"),
    "left_out": (
        "warning",
        "{memory} could not take all rows of the checkpoint: those used longest ago were left out; raise {budget} to "
        "load all of them",
    ),
    "gradients_refused": (
        "warning",
        "table {table} received gradients that are not finite or are beyond 1.8e19; those rows were not updated",
    ),
}
"""Counters of a table of which the user is notified when they first leave 0: the kind of event and its text."""
ALL_IN_USE = (
    "{memory} is too small for some batches: every row that a new id could have replaced was in use in that step, so "
    "the id counts as zeros; raise {budget}"
)
"""Text for the counter "refused" of full tables that evict the least recently used rows."""
USED_LONGEST_AGO = "{memory} is full: new ids replace the rows used longest ago; raise {budget} to keep more of them"
"""Text for the counter "evicted" of the same tables."""
DROPPED = (
    "the space on disks of {memory} is used up: the rows used longest ago are lost; raise embedding.cold.size, or free "
    "space at embedding.cold.path if that disk is full"
)
"""Text for the counter "dropped" of tables whose rows leave memory for disks; there, "evicted" has no note."""


class TableNotes:
    """The notes and warnings about the tables of a run; tables that share capacity are named together."""

    def __init__(self, run: Run) -> None:
        """Find the capacity of each table, and the setting that bounds it."""
        self._notifications = dict(NOTIFICATIONS)
        if run.embedding.cold is not None:
            del self._notifications["evicted"]
            self._notifications["dropped"] = ("warning", DROPPED)
        elif run.embedding.when_full == "evict_lru":
            self._notifications["refused"] = ("warning", ALL_IN_USE)
            self._notifications["evicted"] = ("note", USED_LONGEST_AGO)
        elif run.embedding.when_full != "refuse":
            self._notifications["refused"] = NOTIFICATIONS["evicted"]
        layout = embedding_layout(run)
        self._budget = layout.budget
        self._memories = {
            table.name: _memory([each.name for each in group.tables])
            for group in layout.groups
            for table in group.tables
        }

    def of(self, table: str, counters: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield the kind of event and the text for each counter of the table that is not 0."""
        memory = self._memories.get(table, f"table {table}")
        for counter, (event, template) in self._notifications.items():
            if counters.get(counter):
                yield event, template.format(table=table, memory=memory, budget=self._budget)


def _memory(tables: Sequence[str]) -> str:
    """Name the capacity that the tables of a feature group share."""
    if len(tables) == 1:
        return f"table {tables[0]}"
    names = [*tables[:3], *(["…"] if len(tables) > 3 else [])]
    return f"the shared memory of {len(tables)} tables ({', '.join(names)})"
