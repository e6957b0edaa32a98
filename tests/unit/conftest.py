"""Fixtures for tests of data."""

from pathlib import Path

import pytest

from persia_cli.data.read.cache import CACHE


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache of converted text files for the test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(CACHE, str(folder))
    return folder / "text"
