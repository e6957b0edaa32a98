"""The bytes between the roles of a job, and the ids of an evaluation without a row, by the events at its end."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from persia_cli.store.table_counters import READS, known_of, reads_of
from persia_cli.wire.frames import ByteCounts

MIN_BYTES = 10.0
"""Bytes per sample from which on a link between roles is shown."""

Event = Mapping[str, Any]


class FeatureLookups(NamedTuple):
    """The look-ups of a feature in an evaluation or a prediction, or of a table if no feature is known."""

    name: str
    total: int
    known: int
    """Look-ups that found a row."""


class LinkBytes(NamedTuple):
    """The bytes between two roles per sample."""

    link: str
    total: float
    shared: float
    """Fraction that passed in shared memory."""


def table_counters(events: Sequence[Event]) -> dict[str, dict[str, int]]:
    """Return the counters of each table at the end of the job."""
    return next((event["tables"] for event in reversed(events) if event["event"] == "tables"), {})


def lookups(events: Sequence[Event]) -> list[FeatureLookups]:
    """Return the look-ups of each feature that was evaluated or predicted."""
    rows = []
    for table, counters in table_counters(events).items():
        if not counters.get("reads"):
            continue
        features = [name.removeprefix(READS) for name in counters if name.startswith(READS)]
        by_feature = [FeatureLookups(name, counters[reads_of(name)], counters[known_of(name)]) for name in features]
        rows += by_feature or [FeatureLookups(table, counters["reads"], counters["reads_known"])]
    return rows


def bytes_per_sample(events: Sequence[Event], metrics: Sequence[Event], batch_size: int) -> list[LinkBytes]:
    """Return the bytes per sample, trained or evaluated, that the roles exchanged since the job's last start.

    The bytes of replaced processes are missing.
    """
    begin = next((e["step"] for e in reversed(events) if e.get("phase") == "training" and "step" in e), 0)
    evaluated = sum(line["eval_samples"] for line in metrics if "eval_samples" in line and line["step"] > begin)
    trained = next((line["samples"] for line in reversed(metrics) if line["split"] == "train"), begin * batch_size)
    samples = evaluated + trained - begin * batch_size
    if samples <= 0:
        return []
    exchanged: defaultdict[str, ByteCounts] = defaultdict(ByteCounts)
    for role in next((event["roles"] for event in reversed(events) if event["event"] == "roles"), []):
        for peer, counted in role.get("links", {}).items():
            exchanged[f"{role['role']} - {peer}"] += ByteCounts(**counted)
    totals = {link: both.wire + both.shared for link, both in exchanged.items()}
    return [
        LinkBytes(link, total / samples, exchanged[link].shared / total)
        for link, total in totals.items()
        if total >= MIN_BYTES * samples
    ]
