"""Columns that are times by their values, the formats that are found, and the split and features made of them."""

import csv
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.inspect.inspection import Inspection, inspect_data
from persia_cli.data.read.facts import inspect

ROWS = 400
FIRST = datetime(2015, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMES = [FIRST + timedelta(hours=7 * number) for number in range(ROWS)]


def look(folder: Path, **columns: Sequence[Any]) -> Inspection:
    names = {
        "y": [number % 3 // 2 for number in range(ROWS)],
        "user": [number % 17 for number in range(ROWS)],
        **columns,
    }
    with (folder / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([list(names), *zip(*names.values(), strict=True)])
    return inspect_data(str(folder / "a.csv"), lambda done, total: None)


def suggested(found: Inspection) -> tuple[ParquetDataset, dict[str, Any]]:
    keys = yaml.safe_load(found.suggestion)
    return ParquetDataset.model_validate(keys), keys


def slim(text: str) -> str:
    """Return a date with fields of one digit."""
    return "/".join(part.lstrip("0") for part in text.split("/"))


def as_number(scale: int) -> Callable[[datetime], int]:
    return lambda time: int(time.timestamp()) * scale


@pytest.mark.parametrize(
    ("name", "written", "form"),
    [
        ("seen", lambda time: slim(time.strftime("%m/%d/%Y")), "%m/%d/%Y"),
        ("seen", lambda time: time.strftime("%Y-%m-%d ") + f"{time.hour}:{time.minute:02}", "%Y-%m-%d %H:%M"),
        *(
            ("seen", form, form)
            for form in ("%d/%m/%Y %H:%M:%S", "%d-%b-%Y", "%d.%m.%Y", "%Y/%m/%d", "%b %d, %Y", "%m/%d/%Y %I:%M %p",
                         "%d %b %Y %H:%M", "%m/%d/%y", "%Y%m%d", "%y%m%d%H")
        ),
        ("seen_at", as_number(1), "seconds"),
        ("ts", as_number(1000), "milliseconds"),
        ("unix", lambda time: time.timestamp() + 0.25, "seconds"),
        ("event_time", as_number(1_000_000), "microseconds"),
        ("seen", datetime.isoformat, None),
        ("seen", "%Y-%m-%d", None),
    ],
)  # fmt: skip
def test_a_time_in_any_form_splits_the_rows_and_makes_features(
    name: str, written: str | Callable[[datetime], Any], form: str | None, tmp_path: Path
) -> None:
    texts = [time.strftime(written) if isinstance(written, str) else written(time) for time in TIMES]
    found = look(tmp_path, **{name: texts})
    assert found.roles[name].role == "time"
    dataset, keys = suggested(found)
    given = {} if form is None else {"format": form}
    split = {"kind": "time", "column": name, **given, "eval_fraction": 0.1, "test_fraction": 0.1}
    assert keys["split"] == split
    assert "# The latest rows evaluate" in found.suggestion
    parts = ["hour", "weekday"] if len(set(texts)) == ROWS else ["weekday"]
    assert keys["sparse"][-len(parts) :] == [
        {"name": f"{name}_{part}", "column": name, "transform": part, **given} for part in parts
    ]
    facts = inspect(dataset)
    assert abs(facts.eval_rows - ROWS / 10) <= 4
    assert abs(facts.train_rows - ROWS * 8 / 10) <= 8
    assert "correct the format" not in found.suggestion


def test_a_date_that_may_begin_with_the_day_or_the_month_is_a_doubt(tmp_path: Path) -> None:
    texts = [f"{1 + number // 34}/{1 + number % 12}/2015" for number in range(ROWS)]
    found = look(tmp_path, day=texts)
    assert suggested(found)[0].split.model_dump()["format"] == "%m/%d/%Y"
    assert found.suggestion.count("'%d/%m/%Y' too: correct the format") == 2


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lead_time", [number * 7 % 90 for number in range(ROWS)]),
        ("watch_time", [number * 131 % 7200 for number in range(ROWS)]),
        ("Time", [number * 433 % 172_793 for number in range(ROWS)]),
        ("Time", [f"{1 + number % 11}PM" for number in range(ROWS)]),
        ("year", [1950 + number % 80 for number in range(ROWS)]),
        ("month", [1 + number % 12 for number in range(ROWS)]),
        ("user_id", [1_400_000_000 + number % 40 for number in range(ROWS)]),
        ("zip", [110_001 + number % 60 * 100 for number in range(ROWS)]),
        ("version", [f"{1 + number % 3}.{number % 7}.{number % 4}" for number in range(ROWS)]),
    ],
)
def test_other_values_are_no_times_whatever_they_are_called(name: str, values: list[Any], tmp_path: Path) -> None:
    found = look(tmp_path, **{name: values})
    assert found.roles[name].role != "time"
    assert suggested(found)[0].split.kind == "hash"


@pytest.mark.parametrize(
    ("values", "role"),
    [
        (["2015-01-02" if number < ROWS * 3 // 5 else "2015-01-03" for number in range(ROWS)], "time"),
        (["2015-01-02"] * (ROWS - 2) + ["2015-01-03", "2015-01-04"], "time"),
        ([*(time.date().isoformat() for time in TIMES[1:]), ""], "time"),
    ],
)
def test_times_that_cannot_split_the_rows_do_not(values: list[str], role: str, tmp_path: Path) -> None:
    found = look(tmp_path, seen=values)
    assert found.roles["seen"].role == role
    assert suggested(found)[0].split.kind == "hash"


@pytest.mark.parametrize("form", ["%b-%Y", "%Y-%m", "%m/%Y", "%Y%m"])
def test_months_split_the_rows_but_have_no_weekdays(form: str, tmp_path: Path) -> None:
    months = [datetime(2010 + number // 80, 1 + number // 7 % 12, 1).strftime(form) for number in range(ROWS)]
    dataset, keys = suggested(look(tmp_path, issued=months))
    assert keys["split"]["format"] == form
    assert [each.name for each in dataset.sparse] == ["user"]


def test_the_time_of_the_row_is_chosen_by_its_name(tmp_path: Path) -> None:
    days = [time.date().isoformat() for time in TIMES]
    found = look(tmp_path, signup=days, date_of_birth=days, date=days)
    assert found.roles["date_of_birth"].role == "unused"
    assert suggested(found)[0].split.columns == ("date",)
    assert "other times: signup" in found.suggestion
