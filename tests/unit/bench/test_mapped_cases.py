"""Mapped rows and LMDB are measured on the same rows, and leave no file."""

from pathlib import Path

import numpy as np
import pytest

from scripts.bench import mapped_cases
from scripts.bench.alternate import QUICK


def test_both_read_the_rows_that_are_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("lmdb", reason="lmdb is not installed")
    values = np.random.default_rng(1).standard_normal((5000, mapped_cases.DIM), np.float32)
    ids = np.unique(np.random.default_rng(2).integers(0, 5000, 700))
    for reader in (mapped_cases.mapped_reader, mapped_cases.lmdb_reader):
        read = reader(tmp_path / reader.__name__, values)
        assert (read(ids) == values[ids]).all()
        assert (read(ids[:1]) == values[ids[:1]]).all()


def test_the_case_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    results = list(mapped_cases.mapped(QUICK))
    assert [result.name.rpartition(" ")[2] for result in results] == ["uniform", "Zipf"]
    for result in results:
        ours, *others = result.sides
        assert [side.name for side in others] == ["training store", *(["LMDB"] if mapped_cases.has_lmdb() else [])]
        assert ours.ratios.keys() == {side.name for side in others}
    assert not list(tmp_path.iterdir())
