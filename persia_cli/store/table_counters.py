"""The counters of an embedding server for each table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TableCounters:
    """The counters of a table on this server; look-ups that only read are not counted."""

    rows: int
    """Rows in memory."""
    bytes: int
    """Their memory: embedding, optimizer state, padding."""
    hits: int
    """Ids that had a row."""
    misses: int
    """Ids without a row: admitted + refused + not_admitted."""
    admitted: int
    """Ids that got a row."""
    refused: int
    """Ids for which there was no space, or that were too rare to replace a row; they read as zeros."""
    not_admitted: int
    """Ids that `embedding.admission` does not admit, or not yet; they read as zeros."""
    evicted: int
    """Rows replaced in memory by ids of this or another table."""
    expired: int
    """Those of them that were older than `embedding.expire_after`."""
    left_out: int
    """Rows of a loaded checkpoint for which there was no space."""
    gradients_missing: int
    """Gradients whose row no longer exists."""
    gradients_refused: int
    """Gradients that are not finite in float32, or whose square is not (beyond 1.8e19)."""
    cold_rows: int = 0
    """With `embedding.cold`: rows on disks."""
    returned: int = 0
    """With `embedding.cold`: rows that returned from disks to memory."""
    dropped: int = 0
    """With `embedding.cold`: rows lost because its `size` was used up, or the disk full."""


OF_COLD = ("cold_rows", "returned", "dropped")
"""Counters that tables without a cold tier do not have."""

READS = "reads of "
"""Prefix of the count of a feature's look-ups in evaluation and prediction, among the counts of its table."""


def reads_of(feature: str) -> str:
    """Return the name of the count of a feature's look-ups in evaluation and prediction."""
    return f"{READS}{feature}"


def known_of(feature: str) -> str:
    """Return the name of the count of those that found a row."""
    return f"reads_known of {feature}"
