"""Twenty small tables: never a wrong label, and never a leak in silence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from numpy.typing import NDArray

from persia_cli.data.inspect.inspection import Inspection, inspect_data

Y, RNG = NDArray[np.bool_], np.random.Generator
Make = Callable[[Y, RNG], Any]


def texts(yes: str, no: str) -> Make:
    return lambda y, rng: np.where(y, yes, no)


def other(part: float, values: tuple[Any, Any] = (0, 1)) -> Make:
    """A column of two values that has nothing to do with the label."""
    return lambda y, rng: np.where(rng.random(y.size) < part, values[1], values[0])


def where(rows: Make, value: Make) -> Make:
    """Values in the rows that are chosen, and null elsewhere."""
    return lambda y, rng: pa.array(value(y, rng), mask=~rows(y, rng).astype(bool))


def shifted(by: float) -> Make:
    """A normal number, greater by `by` where the label is positive: its AUC alone is that of by / sqrt(2)."""
    return lambda y, rng: rng.normal(size=y.size) + by * y


ones: Make = lambda y, rng: y.astype(np.int64)  # noqa: E731
noise: Make = lambda y, rng: rng.normal(size=y.size)  # noqa: E731
unique: Make = lambda y, rng: rng.permutation(100 * y.size)[: y.size]  # noqa: E731
dates: Make = lambda y, rng: np.datetime64("2025-03-01") + rng.integers(0, 90, y.size)  # noqa: E731
plan: Make = lambda y, rng: rng.choice(["basic", "plus", "pro"], y.size)  # noqa: E731


class Table(NamedTuple):
    """A table, and what is to be found in it."""

    columns: dict[str, Make]
    labels: Any
    """The entries of `labels`, or the candidates that `???` names, as a text."""
    leaks: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    rows: int = 300


TABLES = {
    "telco": Table(
        {"SeniorCitizen": other(0.2), "Partner": other(0.5, ("No", "Yes")), "x": noise,
         "code": other(0.5, ("7e999", "7f00")), "Churn": texts("Yes", "No")},
        [{"name": "Churn", "positive": "Yes"}],
    ),
    "fraud in the middle": Table({"amount": noise, "is_fraud": ones, "abroad": other(0.2)}, ["is_fraud"]),
    "default within a name": Table(
        {"LIMIT": noise, "SEX": other(0.5, (1, 2)), "default.payment.next.month": ones}, ["default.payment.next.month"]
    ),
    "response": Table({"Response": texts("true", "false"), "plan": plan}, [{"name": "Response", "positive": "true"}]),
    "exited": Table(
        {"Gender": other(0.5, ("m", "f")), "HasCard": other(0.7), "IsActive": other(0.5), "Exited": ones}, ["Exited"]
    ),
    "subscribed": Table(
        {"x": noise, "default": other(0.1, ("no", "yes")), "loan": other(0.3, ("no", "yes")), "y": texts("yes", "no")},
        [{"name": "y", "positive": "yes"}],
    ),
    "hotel": Table(
        {
            "is_canceled": ones,
            "is_repeated_guest": other(0.1),
            "status": lambda y, rng: np.where(y, rng.choice(["Canceled", "No-Show"], y.size), "Check-Out"),
            "status_date": dates,
            "plan": plan,
        },
        ["is_canceled"],
        ("status",),
    ),
    "1 and 2": Table({"x": noise, "class": lambda y, rng: 1 + y}, [{"name": "class", "positive": 2}]),
    "-1 and 1": Table({"x": noise, "sign": lambda y, rng: 2.0 * y - 1}, [{"name": "sign", "positive": 1}]),
    "the rarer text": Table(
        {"x": noise, "Purchase": texts("MM", "CH"), "Store": other(0.4, ("a", "b"))},
        [{"name": "Purchase", "positive": "MM"}],
    ),
    "incomes": Table({"x": noise, "income": texts("2. >50K", "1. <=50K")}, [{"name": "income", "positive": "2. >50K"}]),
    "of another language": Table(
        {"x": noise, "churn": texts("ja", "nein")}, [{"name": "churn", "positive": "ja"}]
    ),
    "good and bad": Table({"risk": texts("bad", "good"), "x": noise}, [{"name": "risk", "positive": "bad"}]),
    "the last column": Table({"row": unique, "plan": plan, "x": noise, "won": ones}, ["won"]),
    "several": Table(
        {"x": noise, "Churn": texts("Yes", "No"), "plan": plan, "target": ones, "left": other(0.2)}, "Churn? target?"
    ),
    "several without names": Table({"x": noise, "a": other(0.4), "plan": plan, "b": ones}, "b? a?"),
    "none": Table({"x": noise, "gender": other(0.5, ("m", "f")), "price": noise}, "gender?"),
    "a label with nulls": Table(
        {"is_new": other(0.2), "target": where(lambda y, rng: rng.random(y.size) < 0.9, ones)}, "target?"
    ),
    "a label with nulls, of texts": Table(
        {"is_new": other(0.2), "target": where(lambda y, rng: rng.random(y.size) < 0.9, texts("yes", "no"))}, "target?"
    ),
    "stars of users": Table(
        {"user": lambda y, rng: rng.integers(0, 40, y.size), "item": lambda y, rng: rng.integers(0, 30, y.size),
         "stars": lambda y, rng: rng.integers(1, 6, y.size)},
        [{"name": "stars", "at_least": 4}],
    ),
    "leaks": Table(
        {
            "id": unique,
            "copy": lambda y, rng: np.exp(3.0 * y) + rng.random(y.size),
            "code": lambda y, rng: 2 * rng.integers(0, 20, y.size) + y,
            "refund_date": where(ones, dates),
            "reason": where(lambda y, rng: y & (rng.random(y.size) < 0.7), plan),
            "kept_until": where(lambda y, rng: ~y, noise),
            "hash": lambda y, rng: [f"{number}e{4000 + number}" for number in rng.integers(1, 99, y.size)],
            "strong": shifted(2.09),
            "near": shifted(2.75),
            "mostly": where(lambda y, rng: y | (rng.random(y.size) < 0.3), noise),
            "churned": ones,
        },
        ["churned"],
        ("copy", "code", "refund_date", "reason", "kept_until"),
        ("near", "mostly"),
        2000,
    ),
    "few rows": Table(
        {"x": noise, "near": shifted(2.75), "copy": ones, "rare": where(lambda y, rng: y, noise), "label": ones},
        ["label"],
        ("copy", "rare"),
        ("near",),
    ),
}  # fmt: skip


def look(path: Path, table: Table) -> Inspection:
    rng = np.random.default_rng(5)
    y = rng.random(table.rows) < 0.3
    columns = {name: pa.array(make(y, rng)) for name, make in table.columns.items()}
    pq.write_table(pa.table(columns), path / "a.parquet")
    return inspect_data(str(path / "a.parquet"), lambda done, total: None)


@pytest.mark.parametrize("name", TABLES)
def test_the_label_is_right_or_asked_for_and_no_leak_is_used(tmp_path: Path, name: str) -> None:
    table = TABLES[name]
    found = look(tmp_path, table)
    suggested = yaml.safe_load(found.suggestion)
    if isinstance(table.labels, str):
        assert suggested["labels"] == "???"
        assert f"labels: ???  # {table.labels} " in found.suggestion
        assert any("the label is not chosen; write labels: [" in note for note in found.notes)
    else:
        assert suggested["labels"] == table.labels
    used = str([suggested["dense"], suggested["sparse"]])
    for leak in table.leaks:
        assert f"'{leak}'" not in used
        assert found.roles[leak].role == "unused"
        assert any(f"column {leak} is left out" in note for note in found.notes)
    doubtful = [each for each, guess in found.roles.items() if "only if it is known before the label" in guess.doubt]
    assert tuple(doubtful) == table.doubts
    if name == "several":
        assert any(note.startswith("if Churn is the label") and note.endswith(": target") for note in found.notes)
    others = {each for each in table.columns if found.roles[each].role == "unused"} - {*table.leaks}
    wanted = {"hotel": {"status_date"}, "a label with nulls": {"target"}, "a label with nulls, of texts": {"target"}}
    assert others - {"id", "row"} == wanted.get(name, set()), "nothing else is left out"


def test_another_usual_label_among_the_features_has_a_doubt(tmp_path: Path) -> None:
    found = look(tmp_path, Table({"plan": plan, "clicked": other(0.3), "bought": ones}, ["bought"]))
    assert found.roles["clicked"].role == "dense"
    assert "clicked  # 0 and 1; also a usual name of labels" in found.suggestion
    assert "usual name of labels" not in found.roles["plan"].doubt
