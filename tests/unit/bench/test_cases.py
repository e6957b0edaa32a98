"""Benchmarks of parts of the store measure what they name, and leave no file."""

from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from persia_cli.store.layout import OptimizerKind
from scripts.bench import journal_cases, mapped_cases, save_cases
from scripts.bench.alternate import QUICK


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, also for temporary files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_every_optimizer_is_measured_with_and_without_a_journal() -> None:
    results = list(journal_cases.journal(QUICK))
    places = product(get_args(OptimizerKind), ("in the cache", "from memory"))
    assert [each.name for each in results] == [f"journal, {kind}, dim 16, {place}" for kind, place in places]
    assert all(0.1 < each.sides[0].ratios[journal_cases.BARE] < 3 for each in results)


def test_mapped_rows_are_measured_and_leave_nothing(folder: Path) -> None:
    results = list(mapped_cases.mapped(QUICK))
    assert [result.name.rpartition(" ")[2] for result in results] == ["uniform", "Zipf"]
    assert all("training store" in result.sides[0].ratios for result in results)
    assert not list(folder.iterdir())


def test_saves_are_measured_and_leave_nothing(folder: Path) -> None:
    assert len(list(save_cases.save(QUICK))) >= 2
    assert not list(folder.iterdir())
