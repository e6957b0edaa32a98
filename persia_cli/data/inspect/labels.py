"""The probable label of a data set, by evidence.

Candidates are columns of two values: 0 and 1, false and true, -1 and 1, or two texts. Each scores

- for its name: 6 for a usual name of labels, alone or after `is_`; 5 for a name with such a word in it; 2 for one that
  begins with `is_`, .4 with `has_`; 3 less for one with a usual word of features, such as `gender`,
- for its place: 2 as the last column, 1 as the first, not counting columns that number rows; half as much where the
  name has no usual word of labels, and none for a first column whose texts do not mean yes and no,
- 3 less if it has nulls, for a label has a value in every row.

The best candidate is the label if it scores at least .5, is at least 1.5 ahead of the next, and has no nulls. So a
place alone decides only where other candidates have names of features: of public tables with several candidates, the
last column was the label in less than half. Otherwise no label is chosen, and those less than 1.5 behind are named; but
a rating of items by users is the label if no candidate scores .5.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from persia_cli.config.schema.features import Label
from persia_cli.config.schema.split import ColumnSplit
from persia_cli.data.inspect.profile import ColumnProfile, DatasetProfile

WITHIN = (
    "label", "labels", "target", "click", "clicked", "clk", "buy", "bought", "purchase", "purchased", "conversion",
    "converted", "like", "liked", "churn", "churned", "fraud", "fraudulent", "default", "defaulted", "delinquent",
    "exited", "attrition", "attrited", "subscribe", "subscribed", "outcome", "survive", "survived", "approved",
    "accepted", "declined", "denied", "readmitted", "cancelled", "canceled", "returned", "renewed", "hired", "spam",
)  # fmt: skip
"""Words that name a label, also within a longer name."""
ALONE = (*WITHIN, "y", "class", "result", "response", "deposit", "event", "died", "death", "dead", "deny", "status")
"""Words that name a label where they are the whole name."""
VAGUE = ("status",)
"""Those that name a label only if its values are yes and no, or mean it."""
PAST = ("previous", "prev", "prior", "past", "last", "old", "history", "before")
"""Words of names of what was known before, such as `previous_default`."""
FEATURES = (
    "sex", "gender", "male", "female", "married", "marital", "smoker", "smoking", "race", "ethnicity", "black", "white",
    "senior", "student", "urban", "weekend", "weekday", "holiday", "workingday", "member", "treatment", "treated",
    "treat", "trt", "group", "train", "test",
)  # fmt: skip
"""Words of names of features, although these often have two values."""
RATINGS = ("rating", "ratings", "stars")
USERS = ("user", "users", "customer", "member", "reviewer", "visitor", "account", "uid")
MOST_RATINGS = 10
LEAST, LEAD = 0.5, 1.5
"""Score of a label, and its lead on the next candidate."""
MOST_NAMED = 5
"""Candidates that are named where none is chosen."""
POSITIVE = {
    "yes", "true", "y", "t", "positive", "pos", "bad", "up", "click", "clicked", "bought", "purchased",
    "converted", "churn", "churned", "default", "defaulted", "fraud", "fraudulent", "cancelled", "canceled", "exited",
    "left", "attrited", "subscribed", "survived", "approved", "readmitted", "died", "dead", "deceased", "spam",
    "malignant", "success", "successful", "ja", "oui", "si", "sí", "sim", "да",
}  # fmt: skip
"""Words of texts that are positive."""
NEGATIVE = {
    "no", "not", "non", "nein", "nee", "nej", "não", "нет", "false", "n", "f", "negative", "neg", "none", "never",
}  # fmt: skip
"""Words of texts that are negative, whatever else they hold."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A column that may be the label."""

    label: Label
    score: float
    reason: str
    is_complete: bool = True

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.label.name


def entry_of(label: Label) -> str | dict[str, Any]:
    """Return the entry of `labels` in a configuration."""
    values = label.model_dump(mode="json", exclude_defaults=True)
    return values if len(values) > 1 else label.name


def candidates_of(profile: DatasetProfile) -> list[Candidate]:
    """Return the columns that may be the label, the most likely first."""
    split = profile.split
    names = [name for name in profile.columns if not (isinstance(split, ColumnSplit) and name == split.column)]
    first = next((name for name in names if not _numbers_rows(profile.columns[name])), None)
    places = {first: (1, "the first column")} | dict.fromkeys(names[-1:], (2, "the last column"))
    candidates = (_candidate(profile.columns[name], *places.get(name, (0, ""))) for name in names)
    return sorted(
        (candidate for candidate in candidates if candidate is not None), key=lambda candidate: -candidate.score
    )


def chosen_of(candidates: list[Candidate], profile: DatasetProfile) -> Candidate | None:
    """Return the label; None if none is clearly ahead."""
    if not candidates or candidates[0].score < LEAST:
        return next(_ratings(profile), None)
    best, *others = candidates
    is_ahead = all(best.score - other.score >= LEAD for other in others)
    return best if is_ahead and best.is_complete else None


def comparable(candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates to choose from where none is chosen."""
    return [candidate for candidate in candidates if candidates[0].score - candidate.score < LEAD][:MOST_NAMED]


def is_usual(name: str) -> bool:
    """Return True for a usual name of labels."""
    return _by_name(name)[0] >= 5


def positive_sql(label: Label, is_text: bool) -> str:
    """Return SQL that is true where the column `y` is a positive label, and false elsewhere."""
    if label.at_least is not None:
        condition = f"y >= {label.at_least}"
    elif not label.positives:
        condition = "y::DOUBLE > 0.5"
    elif is_text:
        texts = ("'" + str(value).replace("'", "''") + "'" for value in label.positives)
        condition = f"y::VARCHAR IN ({', '.join(texts)})"
    else:
        condition = f"y IN ({', '.join(map(str, label.positives))})"
    return f"coalesce({condition}, false)"


def words_of(text: str) -> list[str]:
    """Return the words of a name or a value in lower case, divided by other characters and by changes of case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+", text)]


def _numbers_rows(column: ColumnProfile) -> bool:
    return column.hints.numbers_rows or (column.distinct or 0) == column.count > 2


def _candidate(column: ColumnProfile, points: int, where: str) -> Candidate | None:
    by_name, named = _by_name(column.name)
    if (values := _two_values(column, by_name >= 5)) is None:
        return None
    positive, chosen, is_clear = _positive(column, values)
    if column.name.lower() in VAGUE and not is_clear:
        by_name, named = 0, ""
    if where == "the first column" and by_name < 5 and not is_clear:
        points, where = 0, ""
    score = by_name + (points if by_name >= 5 else points / 2) - (0 if column.is_complete else 3)
    reason = " and ".join(filter(None, (named, where))) or "it has two values"
    nulls = "" if column.is_complete else f"{column.nulls:,} rows have no value"
    label = Label(name=column.name, positive=positive)
    return Candidate(label, score, "; ".join(filter(None, (reason, chosen, nulls))), column.is_complete)


def _by_name(name: str) -> tuple[float, str]:
    """Return the score of a name, and the reason for it."""
    parts = words_of(name)
    prefix = parts[0] if len(parts) > 1 else ""
    rest = parts[1:] if prefix in ("is", "was", "did", "will") else parts
    if len(rest) == 1 and rest[0] in ALONE:
        return 6, "a usual name of labels"
    if not set(parts) & {*PAST}:
        if set(parts) & {*WITHIN}:
            return 5, "a usual word of labels in its name"
        if set(parts) & {*FEATURES}:
            return -3, ""
        if prefix in ("is", "has"):
            return (2, "a name with is") if prefix == "is" else (0.4, "a name with has")
    return 0, ""


def _two_values(column: ColumnProfile, is_usual: bool) -> list[tuple[str, float]] | None:
    """Return the two values of a column that may be a label, each with its part of the rows; None for other columns.

    Two numbers other than 0 and 1, and -1 and 1, are a label's only if it has a usual name.
    """
    numbers = column.numbers
    if numbers is not None and numbers.is_binary:
        mean = numbers.mean or 0.0
        return [("0", 1 - mean), ("1", mean)]
    if column.distinct != 2 or column.kind not in ("integer", "number", "text"):
        return None
    values = {value for value, _ in column.top}
    if column.kind == "text":
        return list(column.top)
    return list(column.top) if is_usual or values == {"-1", "1"} else None


def _positive(column: ColumnProfile, values: list[tuple[str, float]]) -> tuple[str | int | None, str, bool]:
    """Return the positive value, None for 1 of 0 and 1, a clause on the choice, and True if the values show it."""
    texts = [value for value, _ in values]
    if all(re.fullmatch(r"-?\d+", text) for text in texts):
        greater = max(texts, key=int)
        if column.kind == "text":
            return greater, f"{greater} is positive", True
        return (None, "", True) if {*texts} == {"0", "1"} else (int(greater), f"{greater} is positive", True)
    signs = [_sign(text) for text in texts]
    if signs[0] != signs[1]:
        positive = texts[signs.index(max(signs))]
        return positive, f"{positive} is positive", True
    rarer, other = sorted(values, key=lambda value: (value[1], value[0]))
    return rarer[0], f"{rarer[0]} is positive, as it is rarer than {other[0]}", False


def _sign(text: str) -> int:
    """Return 1 for a text that is usually positive, -1 for one that is usually negative, and else 0."""
    parts = set(words_of(text))
    if parts & NEGATIVE or "<" in text or text.startswith("-"):
        return -1
    return int(bool(parts & POSITIVE) or ">" in text or text.startswith("+"))


def _ratings(profile: DatasetProfile) -> Iterator[Candidate]:
    """Yield ratings of items by users: a few whole numbers under a usual name, in a table with a column of users."""
    ids = [column.name for column in profile.columns.values() if (column.distinct or 0) > MOST_RATINGS]
    if len(ids) < 2 or not any(set(words_of(name)) & {*USERS} for name in ids):
        return
    for column in profile.columns.values():
        numbers = column.numbers
        is_rating = column.name.lower() == "score" or set(words_of(column.name)) & {*RATINGS}
        if not is_rating or numbers is None or numbers.greatest is None:
            continue
        if column.is_complete and 2 < (column.distinct or 0) <= MOST_RATINGS:
            least = math.ceil(0.8 * numbers.greatest)
            yield Candidate(Label(name=column.name, at_least=least), 0, f"a rating; {least} and more are positive")
