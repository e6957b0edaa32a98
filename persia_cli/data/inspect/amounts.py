"""The evidence that whole numbers are amounts, which have an order, or ids, which have none.

A name of ids (user_id, zip) makes ids. Else every clue adds to a score:

    +2   the name is one of amounts (age, num_items)
    +2   the label follows the order of the values: a few parts in order explain most of what all values explain
    -2   the label differs between the values, but hardly by their order; -4 if that is certain
    +2   neighbouring values are about equally frequent, as ages are; +1 for few values
    +1.5 the values are close together at the low end and far apart at the other, as prices and long counts are
    -1   neighbouring values are as differently frequent as any two are
    -1   many values are spread evenly from the least to the greatest, as numbers that are given one by one are
    -1.5 the values are few of those in between and do not get rarer to one end, as codes are; or they are close to each
         other and far from 0, as years and codes are
         (the last three together take 1.5 at most)

With more than FEW values, a score of SURE makes a number. A lower one that is not negative makes a number and ids of
the same column, and a negative one ids. Up to FEW values are always ids, and a number as well from 1 on. What has the
name of an amount is always a number too.
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.inspect.profile import ColumnProfile
from persia_cli.data.inspect.queries import Queries

FEW = 12
"""Distinct values up to which ids have enough rows each, and cost nothing."""
LIKELY, SURE = 1.0, 2.0
AT_ONCE = 31
"""Columns of which a sample is taken at once, next to the label."""
_AMOUNT = re.compile(
    "adults|ages?|amounts?|amt|area|babies|balance|bathrooms|bedrooms|budget|calls|capacity|charges?|children|clicks|cnt"
    "|comments|costs?|counts?|days|dependents|deposit|discount|dist|distance|duration|employees|exper|experience|fare|fee"
    "|followers|gain|guests|height|hours|hrs|impressions|income|items|kids|kms|length|likes|limit|loan|loss|mileage|miles"
    "|minutes|months|nights|orders|pages|payments?|points|population|premium|prices?|purchases|qty|quantity|rate|rating"
    "|requests|revenue|reviews|rooms|salary|sales|scores?|seconds|sessions|shares|size|spend|spending|sqft|sum|tax|temp"
    "|temperature|tenure|time|total|transactions|usage|users|value|views|visits|votes|wages?|weeks|weight|width|words"
    "|years|yrs"
)
"""A word for an amount in a column's name."""
_LONG = 4
"""Letters from which on the end of a word may be a word for an amount, as in landvalue."""
_COUNTED = ("num", "n", "nb", "nof", "number", "no")
"""Beginnings of names before what is counted, as in num_items."""
_ID = re.compile(
    "(brand|category|channel|city|class|cluster|code|country|county|customer|department|dept|district|gender|group|hash"
    "|item|key|kind|model|month|movie|occupation|product|race|region|segment|sex|shop|state|station|store|type|user"
    "|version|weekday|zip)?(ids?)?|cat|codes|guid|idx|plz|postal|postcode|sku|uid|uuid|zipcode"
)
"""A word for ids in a column's name."""
_LEAST_SHARE, _MOST_SHARE, _NO_SHARE = 0.6, 0.25, 0.15
_SEEN, _DIFFERENT, _CERTAIN = 4.0, 6.0, 20.0
"""Deviations from chance beyond which an order is seen, values are different, and certainly so."""
_MOST_PARTS = 10
_FEWEST = 6
"""Distinct values up to which steps between them are chance."""
_SMOOTH, _ROUGH = 0.5, 0.8
"""Steps between the numbers of rows of neighbouring values, as a part of those in a random order."""
_ROWS_EACH = 8
"""Rows for each value from which on rough steps are not chance."""
_TAIL, _EVEN = 0.25, 0.1
"""Part of the values that lies lower than if they were spread evenly."""
_TAIL_VALUES, _EVEN_VALUES = 20, 100
_FAR = 10.0
"""Multiple of the range beyond which the least value is far from 0."""
_SPARSE = 0.2
"""Distinct values as a part of the whole numbers from the least to the greatest, below which codes are."""

Floats = NDArray[np.float64]
Use = Literal["number", "both", "ids"]


@dataclass(frozen=True, slots=True)
class Values:
    """The distinct values of a column in order, with the rows that have each, and their labels."""

    numbers: Floats
    rows: Floats
    labels: Floats
    """Sum of the labels of these rows."""
    variance: float
    """Variance of the labels of all rows, 0 if there are none."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the numbers of the rows."""
        mean = np.average(self.numbers, weights=self.rows)
        return float(np.sqrt(np.average((self.numbers - mean) ** 2, weights=self.rows)))


@dataclass(frozen=True, slots=True)
class Amount:
    """The use of a column of whole numbers."""

    use: Use
    score: float
    values: Values
    is_named: bool = False
    """True if the column has the name of an amount."""


def amounts_of(queries: Queries, columns: list[ColumnProfile], label: tuple[str, str] | None) -> dict[str, Amount]:
    """Return the uses of columns of whole numbers, by a sample of their rows.

    `label` is the column of the label, and SQL that makes a number of its value `y`.
    """
    amounts = {}
    for start in range(0, len(columns), AT_ONCE):
        part = {f"c{number}": column for number, column in enumerate(columns[start : start + AT_ONCE])}
        selected = {column.name: short for short, column in part.items()}
        named = {short: column.name for short, column in part.items()} | ({"y": label[0]} if label else {})
        queries.select(named, list(named))
        for name, short in selected.items():
            if (values := _values(queries, short, label and label[1])) is not None:
                amounts[name] = amount(name, values)
    return amounts


def amount(name: str, values: Values) -> Amount:
    """Return the use of a column by its name and its distinct values, of which there are at least three."""
    number = len(values.numbers)
    named = _named(name)
    score = (2.0 if named == "amount" else 0.0) + _ordered(values) + _shaped(values)
    if named == "ids":
        return Amount("ids", -SURE, values)
    if number > FEW and score >= SURE:
        return Amount("number", score, values, named is not None)
    is_both = named is not None or score >= (LIKELY if number <= FEW else 0.0)
    return Amount("both" if is_both else "ids", score, values, named is not None)


def _values(queries: Queries, column: str, label: str | None) -> Values | None:
    """Return the distinct values of a column; None if there are fewer than three, or too large ones for float64."""
    rows = queries.run(
        f"SELECT {column}::DOUBLE, count(*), sum({label or 0}::DOUBLE), sum(({label or 0}::DOUBLE) ** 2) FROM sample "
        f"WHERE isfinite({column}::DOUBLE) {f'AND {label} IS NOT NULL' if label else ''} GROUP BY 1 ORDER BY 1"
    )
    numbers, counts, sums, squares = np.array(rows, np.float64).reshape(-1, 4).T
    if len(numbers) < 3 or max(abs(numbers[0]), abs(numbers[-1])) >= 2.0**53:
        return None
    total = counts.sum()
    return Values(numbers, counts, sums, max(float(squares.sum() / total - (sums.sum() / total) ** 2), 0.0))


def _named(name: str) -> Literal["amount", "ids"] | None:
    """Return what a name is one of; its last word counts most."""
    parts = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    if not parts:
        return None
    if _ID.fullmatch(parts[-1]):
        return "ids"
    is_counted = parts[0] in _COUNTED and len(parts) > 1
    ends = (parts[-1][start:] for start in range(len(parts[-1]) - _LONG + 1))
    if is_counted or any(_AMOUNT.fullmatch(word) for word in (*parts, *ends)):
        return "amount"
    return "ids" if any(_ID.fullmatch(word) for word in parts) else None


def _ordered(values: Values) -> float:
    """Return the score of the label: how much of its differences between values is a matter of their order."""
    if not values.variance:
        return 0.0
    degrees = len(values.rows) - 1
    between = _excess(values.rows, values.labels, values.variance)
    if degrees < FEW:
        parts, in_order = 1, _by_rank(values)
    else:
        number = min(_MOST_PARTS, (degrees + 1) // 3)
        middle = np.cumsum(values.rows) - values.rows / 2
        part = np.minimum(middle / values.rows.sum() * number, number - 1).astype(np.int64)
        rows, labels = (np.bincount(part, weights).astype(np.float64) for weights in (values.rows, values.labels))
        parts, in_order = int(np.count_nonzero(rows)) - 1, _excess(rows[rows > 0], labels[rows > 0], values.variance)
    by_chance = parts / degrees
    share = (in_order / between - by_chance) / (1 - by_chance) if between > 0 and by_chance < 1 else 1.0
    if in_order >= _SEEN * values.variance * np.sqrt(2 * max(parts, 1)) and share >= _LEAST_SHARE:
        return 2.0
    sureness = between / (values.variance * np.sqrt(2 * degrees))
    if sureness < _DIFFERENT or share > _MOST_SHARE:
        return 0.0
    return -4.0 if sureness >= _CERTAIN and share <= _NO_SHARE else -2.0


def _excess(rows: Floats, labels: Floats, variance: float) -> float:
    """Return the squares of the differences between groups' mean labels, summed over rows, beyond those by chance."""
    means = labels / rows
    return float((rows * (means - labels.sum() / rows.sum()) ** 2).sum() - (len(rows) - 1) * variance)


def _by_rank(values: Values) -> float:
    """Return what a straight line through the values' mean labels, by their ranks, explains beyond chance."""
    rows, ranks = values.rows, np.arange(len(values.rows), dtype=np.float64)
    ranks -= (rows * ranks).sum() / rows.sum()
    together = (ranks * (values.labels - rows * values.labels.sum() / rows.sum())).sum()
    return float(together**2 / (rows * ranks**2).sum() - values.variance)


def _shaped(values: Values) -> float:
    """Return the score of the places of the values and of their numbers of rows."""
    numbers, rows, number = values.numbers, values.rows, len(values.numbers)
    position = (numbers - numbers[0]) / (numbers[-1] - numbers[0])
    tail = float(np.max(np.arange(1, number + 1) / number - position))
    score, doubt = 0.0, 0.0
    ordered = np.sort(rows)
    differences = 2 * float((2 * np.arange(number) - number + 1) @ ordered) / number  # of a random order, all steps
    if number > _FEWEST and differences:
        steps = float(np.abs(np.diff(rows)).sum()) / differences
        score += (2.0 if number > FEW else 1.0) if steps <= _SMOOTH else 0.0
        doubt += 1.0 if steps >= _ROUGH and rows.sum() >= _ROWS_EACH * number else 0.0
    score += 1.5 if tail >= _TAIL and number >= _TAIL_VALUES else 0.0
    doubt += 1.0 if tail < _EVEN and number >= _EVEN_VALUES else 0.0
    range_ = float(numbers[-1] - numbers[0])
    is_sparse = number < _SPARSE * (range_ + 1) and (tail < _EVEN or number <= FEW)
    doubt += 1.5 if is_sparse or numbers[0] > _FAR * range_ else 0.0
    return score - min(doubt, 1.5)
