"""A prediction that is no number is reported as a failure, not returned."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from persia_cli.serving.description import NETWORK
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.network import FrozenNetwork
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import ask, tensor

ROW = {"user": 1, "item": 4, "words": ["lamp"], "price": 0.5}
BODIES = {
    "/v1/models/shop:predict": {"instances": [ROW] * 3},
    "/v2/models/shop/infer": {
        "inputs": [
            tensor("user", "UINT64", [1]), tensor("item", "INT64", [4, 5, 6]),
            tensor("words", "BYTES", ["lamp"], [1, 1]), tensor("price", "FP32", [0.5]),
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_prediction_that_is_no_number_is_an_error_that_names_it(
    predictor: Predictor, path: str, value: float
) -> None:
    network = FrozenNetwork(predictor.folder / NETWORK, 1)

    def logits(inputs: Any) -> Any:
        found = network.logits(inputs)
        found[2, 1] = value
        return found

    app = ServingApp(predictor, ServerSettings(str(predictor.folder)))
    predictor._network = SimpleNamespace(logits=logits)  # type: ignore[assignment]
    predictor._links = ["identity", "identity"]
    answer = ask(app, "POST", path, json.dumps(BODIES[path]).encode())
    assert answer.status == 500
    assert f"{value} as buy_probability of sample 2" in answer.json()["error"]
