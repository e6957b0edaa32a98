"""Distinction of paths and settings among the arguments of `persia predict`."""

from pathlib import Path

import pytest

from persia_cli.commands.predict import paths_and_words
from persia_cli.errors import UserError


def test_paths_and_settings_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day=3").mkdir()
    given = ["a.parquet", "data/day=2/x", "day=3", "s3://b/k=v", "cluster.nn_workers=2", "~dataset.fill", "day=4"]
    assert paths_and_words(given) == (given[:4], given[4:])
    with pytest.raises(UserError, match="name the data to score first"):
        paths_and_words(["day=4"])
