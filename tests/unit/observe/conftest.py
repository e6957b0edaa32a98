"""A record for reports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorded import Recorded, Recording


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    """Begin a record, each in a separate folder."""
    made: list[Recorded] = []

    def begin(**settings: Any) -> Recorded:
        folder = tmp_path / f"run-{len(made)}"
        folder.mkdir()
        made.append(Recorded(folder, **settings))
        return made[-1]

    yield begin
    for recorded in made:
        recorded.metrics.close()
        recorded.events.close()
