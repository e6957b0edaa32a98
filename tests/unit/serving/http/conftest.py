"""A small model to serve."""

import pytest

from persia_cli.serving.predictor import Predictor
from tests.support.small_model import write_small_model


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor.open(write_small_model(tmp_path_factory.mktemp("model") / "shop"))
