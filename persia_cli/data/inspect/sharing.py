"""Evidence that a list holds ids of another column, so that both should read one table.

Common ids alone are weak evidence where both columns are numbered from 1: their ids overlap whatever they mean. So the
fraction of common ids is compared with the fraction expected by chance, if the column's ids were spread evenly over the
list's range; where chance explains the overlap, only names decide (`last_items` and `item`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from persia_cli.data.inspect.ids import common_samples
from persia_cli.data.inspect.profile import ColumnProfile

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


@dataclass(frozen=True, slots=True)
class _Overlap:
    """The distinct training ids that a list has in common with a column of single ids."""

    name: str
    """The column of single ids."""
    fraction: float
    """Their fraction of the list's ids."""
    by_chance: float
    """The same, expected by chance: the fraction of integers in the list's range that are ids of the column."""
    of_either: float
    """Their fraction of the ids that either has."""


def shared_tables(lists: list[ColumnProfile], singles: list[ColumnProfile]) -> Mapping[str, Sharing]:
    """Return the findings for each list that has most of its ids in common with a column of single ids."""
    found = {}
    for column in lists:
        near = [common for other in singles if (common := _overlap(column, other)).fraction >= SHARED]
        if near:
            found[column.name] = _decide(column, near)
    return found


def _decide(column: ColumnProfile, near: list[_Overlap]) -> Sharing:
    named = [other for other in near if _is_named_after(column.name, other.name)]
    telling = [
        other for other in near if (column.distinct or 0) >= FEW_IDS and other.fraction >= LIFT * other.by_chance
    ]
    chosen = [other for other in named if other in telling] or named or telling
    if not chosen:
        names = " and ".join(other.name for other in near[:3])
        return Sharing(None, f"numbered alike as {names}, which need not mean the same: `table: NAME` if it does")
    best = max(chosen, key=lambda other: other.of_either)
    why = ", as its name says" if best in named else ""
    return Sharing(best.name, f"{best.fraction:.0%} of them ids of {best.name}{why}")


def _overlap(column: ColumnProfile, other: ColumnProfile) -> _Overlap:
    assert column.ids is not None
    assert other.ids is not None
    sample, others = common_samples(column.ids.trained(), other.ids.trained())
    if not sample.ids.size:
        return _Overlap(other.name, 0.0, 0.0, 0.0)
    common = np.intersect1d(sample.ids, others.ids).size
    own, foreign = (each.ids.view(np.int64).astype(np.float64) for each in (sample, others))
    inside = np.count_nonzero((foreign >= own.min()) & (foreign <= own.max())) * 2.0**sample.level
    by_chance = min(1.0, float(inside / (own.max() - own.min() + 1.0)))
    return _Overlap(other.name, common / own.size, by_chance, common / (own.size + foreign.size - common))


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
