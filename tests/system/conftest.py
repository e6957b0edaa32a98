"""Common references of several system tests."""

import pytest

from persia_cli.engines.job import JobResult
from tests.support.jobs import train
from tests.support.small import WORDS


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """The small job with nothing between its roles: one replica of each, in one process."""
    return train([*WORDS, "cluster=embedded"], tmp_path_factory.mktemp("undisturbed") / "run")
