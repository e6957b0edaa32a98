"""The counters of an embedding server for each table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TableCounters:
    """The counters of a table on this server; look-ups that only read are not counted."""

    rows: int
    bytes: int
    """Memory of its rows in bytes: embedding, states, padding."""
    hits: int
    """Keys of training look-ups that had a row."""
    misses: int
    """Keys of training look-ups that had no row: admitted + refused + not_admitted."""
    admitted: int
    refused: int
    """Keys answered with zeros since there was no space."""
    not_admitted: int
    """Keys answered with zeros since their id is not admitted, or not yet."""
    evicted: int
    """Rows evicted for keys of this or another table."""
    expired: int
    """Evicted rows that had expired."""
    left_out: int
    """Rows of a loaded checkpoint for which there was no space."""
    gradients_missing: int
    """Gradients of keys without a row."""
    gradients_refused: int
    """Gradients with a value that is not finite in float32, or whose square is not finite (beyond 1.8e19)."""


READS = "reads of "
"""Prefix of the count of a feature's look-ups in evaluation and prediction, among the counts of its table."""


def reads_of(feature: str) -> str:
    """Return the name of the count of a feature's look-ups in evaluation and prediction."""
    return f"{READS}{feature}"


def known_of(feature: str) -> str:
    """Return the name of the count of those that found a row."""
    return f"reads_known of {feature}"
