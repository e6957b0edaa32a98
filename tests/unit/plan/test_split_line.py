"""The line that gives a data set the part of its split that it lacks."""

from typing import Any

import pytest
import yaml

from persia_cli.plan.checks import split_line
from tests.support.runs import make_run


@pytest.mark.parametrize(
    "split",
    [
        {"kind": "every", "n": 5},
        {"kind": "hash", "eval_fraction": 0.2},
        {"kind": "hash", "column": "user", "eval_fraction": 0.8},
        {"kind": "time", "column": "day", "eval_from": "2024-02-01"},
        {"kind": "last", "group": "user", "order": "day"},
        {"kind": "files", "train": ["a.csv"], "eval": ["b.csv"]},
        {"kind": "column", "column": "part", "train": "a", "eval": "b"},
    ],
    ids=lambda split: split["kind"],
)
def test_it_can_be_pasted_and_sets_test_samples_aside(split: dict[str, Any]) -> None:
    line = split_line(make_run(dataset={"split": split}), "test").partition(": split: ")[2]
    given = yaml.safe_load(line)
    if split["kind"] in ("files", "column"):
        assert given == split | {"test": "???"}, "only the user knows them"
        given["test"] = ["c.csv"]
    found = make_run(dataset={"split": given}).dataset.split
    assert found.of_test() is not None
    assert found.columns == make_run(dataset={"split": split}).dataset.split.columns


def test_evaluation_samples_too() -> None:
    run = make_run(dataset={"split": {"kind": "files", "train": ["a.csv"]}})
    assert split_line(run, "eval").endswith(": split: {kind: files, train: [a.csv], eval: '???'}")
