"""Benchmarks of saving measure real files, and leave none behind."""

from pathlib import Path

import pytest

from scripts.bench import save_cases
from scripts.bench.alternate import QUICK


def test_the_working_folder_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(list(save_cases.save(QUICK))) >= 2
    assert not list(tmp_path.iterdir())
