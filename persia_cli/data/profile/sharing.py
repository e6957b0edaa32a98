"""Evidence that a list holds ids of another column, so that both should read one table.

Common ids alone are weak evidence where both columns are numbered from 1: their ids overlap whatever they mean. So the
fraction of common ids is compared with the fraction expected by chance, if the column's ids were spread evenly over the
list's range; where chance explains the overlap, only names decide (`last_items` and `item`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.profile.dataset import ColumnProfile
from persia_cli.data.profile.ids import ids_of

SHARED = 0.5
"""Least fraction of a list's ids that are ids of the column whose table it is to read."""
LIFT = 4.0
"""Least multiple of the fraction expected by chance."""
FEW_IDS = 50
"""Least number of ids that is evidence without a name."""

_PLAIN = frozenset({"id", "ids", "idx", "index", "key", "code", "hash", "feature", "feat", "list", "seq"})
"""Words of a column's name that do not name the kind of its ids."""
_PAST = frozenset({
    "history", "hist", "last", "past", "previous", "prev", "recent", "before", "seen", "viewed", "clicked", "click",
    "bought", "watched", "liked", "visited", "sequence", "session",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sharing:
    """A column whose ids a list seems to hold; or, without a `table`, columns with common ids."""

    table: str | None
    text: str
    """The reason for the table, or for its absence."""


def shared_tables(lists: list[ColumnProfile], singles: list[ColumnProfile]) -> Mapping[str, Sharing]:
    """Return the findings for each list that has most of its ids in common with a column of single ids."""
    found = {}
    for column in lists:
        common = {other.name: _overlap(column, other) for other in singles}
        near = [other for other in singles if common[other.name] >= SHARED]
        if near:
            found[column.name] = _decide(column, near, common)
    return found


def _decide(column: ColumnProfile, near: list[ColumnProfile], common: Mapping[str, float]) -> Sharing:
    named = [other for other in near if _is_named_after(column.name, other.name)]
    telling = [
        other
        for other in near
        if (column.distinct or 0) >= FEW_IDS and common[other.name] >= LIFT * _by_chance(column, other)
    ]
    chosen = [other for other in named if other in telling] or named or telling
    if not chosen:
        names = " and ".join(other.name for other in near[:3])
        return Sharing(None, f"numbered alike as {names}, which need not mean the same: `table: NAME` if it does")
    best = max(chosen, key=lambda other: _jaccard(column, other))
    why = ", as its name says" if best in named else ""
    return Sharing(best.name, f"{common[best.name]:.0%} of them ids of {best.name}{why}")


def _samples(column: ColumnProfile, other: ColumnProfile) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return sampled keys of both columns' training ids, sampled at the same level."""
    level = max(column.sample.level, other.sample.level)
    return column.sample.at(level)[0], other.sample.at(level)[0]


def _overlap(column: ColumnProfile, other: ColumnProfile) -> float:
    """Return the fraction of a column's distinct training ids that another column also has."""
    keys, others = _samples(column, other)
    return float(np.isin(keys, others).mean()) if keys.size else 0.0


def _jaccard(column: ColumnProfile, other: ColumnProfile) -> float:
    """Return the ids that both columns have as a fraction of those that either has."""
    keys, others = _samples(column, other)
    both = int(np.intersect1d(keys, others).size)
    return both / max(1, keys.size + others.size - both)


def _by_chance(column: ColumnProfile, other: ColumnProfile) -> float:
    """Return the fraction of integers between a column's least and greatest id that are ids of the other column."""
    keys, others = _samples(column, other)
    level = max(column.sample.level, other.sample.level)
    own, foreign = (ids_of(each).view(np.int64).astype(np.float64) for each in (keys, others))
    least, greatest = own.min(), own.max()
    inside = np.count_nonzero((foreign >= least) & (foreign <= greatest)) * 2.0**level
    return min(1.0, float(inside / (greatest - least + 1.0)))


def _is_named_after(name: str, other: str) -> bool:
    """Return True if a name is another column's name with a word for the past: last_items or item_history for item_id.

    The other name comes last, or is followed by words for the past: item_tags are not items.
    """
    wanted = [word for word in _words(other) if word not in _PLAIN]
    words = [word for word in _words(name) if word not in _PLAIN]
    while wanted and words and words[-1] in _PAST and words[-1] not in wanted:
        words.pop()
    return bool(wanted) and words[-len(wanted) :] == wanted


def _words(name: str) -> list[str]:
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return [_singular(part.lower()) for part in parts]


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word
