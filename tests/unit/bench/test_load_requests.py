"""Requests to load a server with are ones that it answers, of golden values where there are any."""

import asyncio

import numpy as np
import pytest

from persia_cli.bench.load.requests import RequestForm, pool_of, prepared, user_fields
from persia_cli.errors import UserError
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import asked
from tests.support.small_model import NAME, write_small_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor.open(write_small_model(tmp_path_factory.mktemp("model") / NAME))


def test_values_are_golden_where_samples_have_them(model: Predictor) -> None:
    pool = pool_of(model)
    assert pool.samples == 3
    assert pool.made_up == ["words"]
    assert list(pool.values["user"]) == [1, 2, 9]
    assert list(pool.values["item"]) == [4, 5, 6]
    assert list(pool.values["price"]) == [0.5, 1.0, -2.0]
    assert all(len(words) == 1 and words[0].startswith("word-") for words in pool.values["words"])


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("user", [frozenset(), frozenset({"user"}), frozenset({"user", "words"})])
def test_the_server_answers_them_with_these_bytes(model: Predictor, is_binary: bool, user: frozenset[str]) -> None:
    app = ServingApp(model, ServerSettings(str(model.folder)))
    for candidates in (1, 40):
        for each in prepared(model, pool_of(model), RequestForm(candidates, user, is_binary), 3):
            head, _, body = each.sent.wire.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            method, path, _ = first.split()
            answer = asyncio.run(asked(app, method, path, body, dict(line.split(": ") for line in lines)))
            assert (answer.status, answer.body) == (200, each.sent.answer)
            assert len(each.inputs["dense"]) == candidates
            assert len(np.unique(each.inputs["dense"])) <= 3


def test_fields_of_the_user(model: Predictor) -> None:
    inputs = model.description.inputs
    assert user_fields(inputs, None) == {each.name for each in inputs[:2]}
    assert user_fields(inputs, " item, price,") == {"item", "price"}
    assert user_fields(inputs, "none") == frozenset()
    with pytest.raises(
        UserError, match="--user missing: the model has no field missing; it has user, item, words, price"
    ):
        user_fields(inputs, "missing")
