"""What tests of data share."""

from pathlib import Path

import pytest

from persia_cli.data.read.converted import CACHE


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of converted text files that is the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(CACHE, str(folder))
    return folder / "text"
