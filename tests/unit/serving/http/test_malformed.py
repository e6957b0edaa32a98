"""The answer to any body is predictions or a sentence."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import ask, binary, tensor

INPUTS = [
    tensor("user", "UINT64", [1, 2]),
    tensor("item", "INT64", [4, 5]),
    tensor("words", "BYTES", ["lamp", "sofa", "chair"]),
    tensor("words.lengths", "INT32", [1, 2]),
    tensor("price", "FP32", [0.5, 2.5]),
]
ROWS = {
    "instances": [
        {"user": 1, "item": "4", "words": ["lamp"], "price": 0.5},
        {"user": 2, "item": "5", "words": None, "price": 1},
    ]
}
BINARY, HEADERS = binary(INPUTS, outputs=[{"name": "click_probability", "parameters": {"binary_data": True}}])
WHOLE = [
    ("/v2/models/shop/infer", json.dumps({"inputs": INPUTS, "id": "7"}).encode(), {}),
    ("/v2/models/shop/infer", BINARY, HEADERS),
    ("/v1/models/shop:predict", json.dumps(ROWS).encode(), {}),
]
NAMES = st.sampled_from(["user", "item", "words", "words.lengths", "price", "user.lengths", "", "x"])
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=5)
    | st.sampled_from([2**63, 2**64 - 1, -(2**63), "12", "-1", "1e3", " 4", "\u0664"])
)  # fmt: skip
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3))
TENSORS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "datatype": st.sampled_from(["BOOL", "INT8", "INT64", "UINT64", "FP16", "FP32", "FP64", "BYTES", "INT65"]),
        "shape": st.lists(st.integers(-1, 4) | st.just(2**40), max_size=3) | st.just([2]) | st.just([1]),
    },
    optional={
        "data": st.lists(SCALARS, max_size=4) | ANYTHING | st.just([1, 2]),
        "parameters": st.dictionaries(st.sampled_from(["binary_data_size", "x"]), st.integers(-1, 40) | SCALARS),
    },
)


@st.composite
def altered(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """A good request of which some bytes were changed, left out or doubled."""
    path, body, headers = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(1, 4))):
        begin, length = draw(st.integers(0, len(body))), draw(st.integers(0, 12))
        body = body[:begin] + draw(st.binary(max_size=6) | st.just(body[:20])) + body[begin + length :]
    return path, body, draw(st.just(headers) | st.just({"inference-header-content-length": str(len(body) // 2)}))


@st.composite
def made_up(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """JSON of the right kind with wrong values, or of any kind."""
    tensors: list[Any] = draw(st.lists(TENSORS, max_size=4))
    whole = [each for each in INPUTS if each["name"] not in {tensor["name"] for tensor in tensors}]
    body: Any = draw(
        st.just({"inputs": [*whole, *tensors]})
        | st.fixed_dictionaries({"inputs": st.just(INPUTS), "parameters": ANYTHING, "outputs": ANYTHING})
        | ANYTHING
    )
    path = draw(st.sampled_from([place for place, _, _ in WHOLE]))
    if path.startswith("/v1"):
        rows = st.dictionaries(st.sampled_from(["user", "item", "words", "price"]), ANYTHING, max_size=4)
        body = {"instances": [{**ROWS["instances"][0], **row} for row in draw(st.lists(rows, max_size=3))]}
    text = json.dumps(body).encode()
    rest = draw(st.binary(max_size=40))
    return path, text + rest, {"inference-header-content-length": str(len(text))} if rest else {}


@pytest.fixture(scope="module")
def app(predictor: Predictor) -> ServingApp:
    return ServingApp(predictor, ServerSettings(str(predictor.folder), deadline_s=60.0))


def require_sentence(app: ServingApp, sent: tuple[str, bytes, dict[str, str]]) -> None:
    path, body, headers = sent
    answer = ask(app, "POST", path, body, headers=headers)
    assert answer.status == 200 or 400 <= answer.status < 500, (sent, answer)
    if answer.status != 200:
        error = answer.json()["error"]
        assert len(error) > 10, error
        assert "\n" not in error


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(sent=altered() | made_up())
def test_a_malformed_body_gets_a_sentence(app: ServingApp, sent: tuple[str, bytes, dict[str, str]]) -> None:
    require_sentence(app, sent)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=20_000, suppress_health_check=list(HealthCheck))
@given(sent=altered() | made_up())
def test_very_many_malformed_bodies_get_a_sentence(app: ServingApp, sent: tuple[str, bytes, dict[str, str]]) -> None:
    require_sentence(app, sent)
