"""Libraries of tables, which start their threads before the tests."""

import pytest

from tests.support.tables import start_libraries


@pytest.fixture(scope="session", autouse=True)
def _libraries(tmp_path_factory: pytest.TempPathFactory) -> None:
    start_libraries(tmp_path_factory.mktemp("libraries") / "table")
