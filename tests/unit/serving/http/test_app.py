"""The application answers by the Open Inference Protocol, with the model's predictions in this process, to the bit."""

import asyncio
import gzip
import json
import time
import tracemalloc
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from persia_cli.serving.description import NETWORK
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import FrozenNetwork, Predictor
from tests.support.asgi import Response, ask, asked, binary, outputs_of, tensor
from tests.support.small_model import LARGE

INFER, PREDICT = "/v2/models/shop/infer", "/v1/models/shop:predict"
INPUTS = [
    tensor("user", "UINT64", [LARGE, 1, 77]),
    tensor("item", "INT64", [4, 5, 6]),
    tensor("words", "BYTES", ["lamp", "sofa", "chair"]),
    tensor("words.lengths", "INT32", [1, 0, 2]),
    tensor("price", "FP32", np.array([0.1, 2.5, -3.7], np.float32).tolist()),
]
COLUMNS = {
    "user": [LARGE, 1, 77],
    "item": [4, 5, 6],
    "words": [["lamp"], [], ["sofa", "chair"]],
    "price": np.array([0.1, 2.5, -3.7], np.float32),
}


@pytest.fixture(scope="module")
def app(predictor: Predictor) -> ServingApp:
    return serving(predictor)


def serving(predictor: Predictor, **settings: Any) -> ServingApp:
    return ServingApp(predictor, ServerSettings(str(predictor.folder), **settings))


def expected(predictor: Predictor, columns: Any = COLUMNS) -> dict[str, list[float]]:
    values = predictor.predict(predictor.fields.batch(columns)).values
    return {"click_probability": values[:, 0].tolist(), "buy_probability": values[:, 1].tolist()}


def infer(app: ServingApp, inputs: list[dict[str, Any]], **more: Any) -> Response:
    return ask(app, "POST", INFER, json.dumps({"inputs": inputs, **more}).encode())


def changed(name: str, **keys: Any) -> list[dict[str, Any]]:
    """The inputs, with one that differs."""
    return [{**each, **keys} if each["name"] == name else each for each in INPUTS]


def test_json_binary_and_rows_have_the_bits_of_this_process(app: ServingApp, predictor: Predictor) -> None:
    answer = infer(app, INPUTS, id="a7")
    assert answer.status == 200, answer.body
    assert {key: answer.json()[key] for key in ("model_name", "model_version", "id")} == {
        "model_name": "shop", "model_version": "17", "id": "a7",
    }  # fmt: skip
    assert outputs_of(answer) == expected(predictor)
    body, headers = binary(INPUTS, parameters={"binary_data_output": True})
    in_bytes = ask(app, "POST", INFER, body, headers=headers)
    assert outputs_of(in_bytes) == expected(predictor)
    assert in_bytes.headers["x-model-version"] == "17"
    rows = [
        dict(zip(COLUMNS, row, strict=True))
        for row in zip(*({**COLUMNS, "price": COLUMNS["price"].tolist()}.values()), strict=True)
    ]
    whole = ask(app, "POST", PREDICT, json.dumps({"instances": rows}).encode())
    assert whole.headers["x-model-version"] == answer.headers["x-model-version"] == "17"
    assert list(whole.json()) == ["predictions"]
    found = whole.json()["predictions"]
    assert {name: [row[name] for row in found] for name in found[0]} == expected(predictor)


def test_ids_are_also_texts_of_decimal_digits(app: ServingApp, predictor: Predictor) -> None:
    assert outputs_of(infer(app, changed("user", data=[str(LARGE), "1", "77"]))) == expected(predictor)
    texts = changed("user", datatype="BYTES", data=[str(LARGE), "1", "77"])
    body, headers = binary(texts)
    assert outputs_of(ask(app, "POST", INFER, body, headers=headers)) == expected(predictor)
    other = outputs_of(infer(app, changed("user", data=[LARGE - 1, 1, 77])))
    assert other["click_probability"][0] != expected(predictor)["click_probability"][0]


def test_an_input_of_one_row_stands_for_all_candidates(app: ServingApp, predictor: Predictor) -> None:
    one = [tensor("user", "INT64", [1]), INPUTS[1], tensor("words", "BYTES", ["lamp", "sofa"], [1, 2]), INPUTS[4]]
    same = {**COLUMNS, "user": [1, 1, 1], "words": [["lamp", "sofa"]] * 3}
    assert outputs_of(infer(app, one)) == expected(predictor, same)


def test_outputs_come_in_the_form_and_order_that_is_asked_for(app: ServingApp, predictor: Predictor) -> None:
    wanted = [{"name": "buy_probability", "parameters": {"binary_data": True}}, {"name": "click_probability"}]
    answer = infer(app, INPUTS, outputs=wanted)
    assert list(outputs_of(answer)) == ["buy_probability", "click_probability"]
    assert outputs_of(answer) == expected(predictor)
    assert answer.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("/v2", {"name": "persia", "extensions": ["binary_tensor_data"]}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/shop/versions/17/ready", {"name": "shop", "ready": True}),
        ("/v2/models/shop", {"versions": ["17"]}),
        ("/v2/models/shop/config", {"name": "shop", "platform": "persia_onnx", "max_batch_size": 0}),
        (
            "/v1/models/shop",
            {
                "model_version_status": [
                    {"version": "17", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
                ]
            },
        ),
    ],
)
def test_routes_without_samples(app: ServingApp, path: str, keys: dict[str, Any]) -> None:
    answer = ask(app, "GET", path)
    assert answer.status == 200
    assert answer.json() | keys == answer.json()


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/nothing", 404, "GET /v2"),
        ("GET", "/v2/models/other", 404, "other"),
        ("GET", "/v2/models/shop/nothing", 404, "/v2/models/shop/infer"),
        ("POST", "/v1/models/shop/else:predict", 404, "/v1/models/shop:predict"),
        ("POST", "/v2/models/shop/versions/3/infer", 404, "no version '3'"),
        ("GET", INFER, 405, "POST"),
        ("POST", "/v2", 405, "GET"),
    ],
)
def test_answers_to_wrong_paths_name_the_valid_ones(
    app: ServingApp, method: str, path: str, status: int, words: str
) -> None:
    answer = ask(app, method, path)
    assert answer.status == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (INPUTS[1:], "no field user"),
        ([*INPUTS, tensor("color", "BYTES", ["red"])], "color"),
        ([*INPUTS, INPUTS[0]], "user is there twice"),
        (changed("user", data=[1, 2]), "input user has 2 values"),
        (changed("user", data=["a", "b", "c"]), "user"),
        (changed("user", data=[2**70, 1, 2]), "user"),
        (changed("user", shape=[-3]), "input user has the shape"),
        (changed("user", datatype="INT65"), "input user has the datatype 'INT65'"),
        (changed("user", shape=[2], data=[1, 2]), "3 values of item, and 2"),
        (changed("price", data=[1.0, None, 2.0]), "price"),
        (changed("price", data=[1.0, 1e300, 2.0]), "price"),
        (changed("words.lengths", data=[1, 1, 2]), "words.lengths"),
        (changed("words.lengths", data=[-1, 2, 2]), "words.lengths"),
        ([each for each in INPUTS if each["name"] != "words.lengths"], "input words has a list of ids"),
        (changed("user", parameters={"binary_data_size": 8}), "input user has both"),
        ([{key: value for key, value in INPUTS[0].items() if key != "data"}], "input user has neither"),
    ],
)
def test_inputs_that_cannot_be_used_are_named(app: ServingApp, inputs: list[dict[str, Any]], words: str) -> None:
    answer = infer(app, inputs)
    assert answer.status == 400, answer.body
    assert words in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b'{"inputs": [], "parameters": {"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"inputs": 3}', "$.inputs"),
        (b'{"inputs": [], "outputs": [{"name": "x"}]}', "no output 'x'"),
        (b'{"inputs": [], "parameters": {"binary_data_output": 1}}', "binary_data_output is true or false"),
    ],
)
def test_bodies_that_cannot_be_used(app: ServingApp, body: bytes, words: str) -> None:
    answer = ask(app, "POST", INFER, body)
    assert answer.status == 400
    assert words in answer.json()["error"]


def test_bytes_that_do_not_fit_are_refused(app: ServingApp) -> None:
    body, headers = binary(INPUTS)
    assert ask(app, "POST", INFER, body, headers=headers).status == 200
    for wrong, told in ((body[:-1], "price has 12 bytes, and only 11"), (body + b"x", "1 byte behind its last input")):
        answer = ask(app, "POST", INFER, wrong, headers=headers)
        assert (answer.status, told in answer.json()["error"]) == (400, True), answer.body
    for length in ("-1", "x", str(len(body) + 1), "9" * 30):
        answer = ask(app, "POST", INFER, body, headers={"inference-header-content-length": length})
        assert (answer.status, "Inference-Header-Content-Length" in answer.json()["error"]) == (400, True)


def test_rows_that_cannot_be_used_are_refused(app: ServingApp) -> None:
    row = {"user": 1, "item": 2, "words": ["lamp"], "price": 1.0}
    for wrong, words in (
        ({**row, "words": 5}, "words"),
        ({**row, "": 5}, "field ''"),
        ({**row, "user": {"id": 1}}, "user"),
        ({**row, "color": 1}, "color"),
        ({**row, "words.lengths": 1}, "words.lengths"),
    ):
        answer = ask(app, "POST", PREDICT, json.dumps({"instances": [wrong]}).encode())
        assert (answer.status, words in answer.json()["error"]) == (400, True), answer.body
    nulls = {"instances": [{**row, "user": None, "words": None}]}
    assert ask(app, "POST", PREDICT, json.dumps(nulls).encode()).status == 200


def test_a_field_is_missing_whatever_the_other_rows_have(app: ServingApp) -> None:
    row = {"user": 1, "item": 2, "words": ["lamp"], "price": 1.0}
    for name in row:
        without = {key: value for key, value in row.items() if key != name}
        for number, rows in ((0, [without]), (1, [row, without]), (0, [without, row])):
            answer = ask(app, "POST", PREDICT, json.dumps({"instances": rows}).encode())
            assert answer.status == 400
            assert f"no field {name} in sample {number} (the first is 0)" in answer.json()["error"]


def test_compressed_and_marked_bodies_are_those_that_they_contain(app: ServingApp, predictor: Predictor) -> None:
    body, headers = binary(INPUTS)
    for name, whole in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body)), ("GZip", gzip.compress(body))):
        answer = ask(app, "POST", INFER, whole, headers={**headers, "content-encoding": name})
        assert outputs_of(answer) == expected(predictor)
    marked = b"\xef\xbb\xbf" + json.dumps({"inputs": INPUTS}).encode()
    assert outputs_of(ask(app, "POST", INFER, marked)) == expected(predictor)


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(bytes(2**27)), "gzip", 413),  # some kilobytes on the wire
        (gzip.compress(b"{}", mtime=0)[:-9], "gzip", 400),
        (gzip.compress(b"{}", mtime=0) + b"more", "gzip", 400),
        (b"{}", "gzip", 400),
        (b"{}", "br", 415),
    ],
    ids=["too large", "cut", "more behind", "plain", "unknown"],  # the bytes have a time
)
def test_what_cannot_be_decompressed_within_bounds_is_refused(
    app: ServingApp, body: bytes, encoding: str, status: int
) -> None:
    tracemalloc.start()
    answer = ask(app, "POST", INFER, body, headers={"content-encoding": encoding})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (answer.status, most < 2**26) == (status, True), answer.body


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (INFER, {"inputs": [tensor("words", "BYTES", [], [2**31 - 1, 0]), *INPUTS[:2], INPUTS[4]]}, 413, "samples"),
        (INFER, {"inputs": [tensor("x" * 100_000, "INT64", [1])]}, 400, "xxx"),
        (INFER, {"inputs": [tensor("user", "BYTES", ["7" * 100_000]), *INPUTS[1:]]}, 400, "777"),
        (PREDICT, {"instances": [{}] * 20_000}, 413, "20,000 samples"),
        # As a table of all names and rows these would be 400 million values.
        (PREDICT, {"instances": [{f"x{number}": 0 for number in range(n, n + 2)} for n in range(10_000)]}, 400, "'x0'"),
    ],
)
def test_a_small_body_makes_no_large_work(app: ServingApp, path: str, body: Any, status: int, words: str) -> None:
    begin = time.process_time()
    answer = ask(app, "POST", path, json.dumps(body).encode())
    assert time.process_time() - begin < 3.0
    assert (answer.status, words in answer.json()["error"]) == (status, True), answer.body[:1000]
    assert len(answer.body) < 2000


def test_requests_have_bounds(predictor: Predictor) -> None:
    app = serving(predictor, most_bytes=1000, most_samples=2)
    answer = infer(app, INPUTS)
    assert (answer.status, "3 samples" in answer.json()["error"]) == (413, True)
    for headers in ({}, {"content-length": "0", "transfer-encoding": "chunked"}):
        answer = ask(app, "POST", INFER, bytes(1001), headers=headers)
        assert (answer.status, answer.headers["connection"]) == (413, "close")
    asks_for_http2 = ask(app, "POST", INFER, b"", headers={"upgrade": "h2c"})
    assert (asks_for_http2.status, "HTTP/1.1" in asks_for_http2.json()["error"]) == (400, True)


def test_a_body_that_does_not_come_in_time_is_refused(predictor: Predictor) -> None:
    answer = ask(serving(predictor, deadline_s=0.05), "POST", INFER, b'{"inp', whole=False)
    assert (answer.status, "0.05 s" in answer.json()["error"]) == (408, True)


def test_requests_beyond_the_queue_are_refused_as_busy(predictor: Predictor) -> None:
    app = serving(predictor, most_requests=2)
    body = json.dumps({"inputs": INPUTS}).encode()

    async def crowd() -> list[Response]:
        return await asyncio.gather(*(asked(app, "POST", INFER, body) for _ in range(5)))

    answers = asyncio.run(crowd())
    # The first has its answer at once, and two wait.
    assert [answer.status for answer in answers] == [200, 200, 200, 503, 503]
    assert answers[-1].headers["retry-after"] == "1"
    assert infer(app, INPUTS).status == 200


def test_metrics_count_requests_samples_and_ids_without_rows(predictor: Predictor) -> None:
    app = serving(predictor)
    infer(app, INPUTS)
    infer(app, [])
    text = ask(app, "GET", "/metrics").body.decode()
    for line in (
        'persia_requests_total{route="infer",status="200"} 1.0',
        'persia_requests_total{route="infer",status="400"} 1.0',
        "persia_samples_total 3.0", 'persia_missing_ids_total{feature="user"} 1.0',
        'persia_request_seconds_count{route="infer"} 2.0',
    ):  # fmt: skip
        assert line in text
    [stats] = ask(app, "GET", "/v2/models/shop/stats").json()["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (3, 1)
    assert stats["inference_stats"] == {"success": {"count": 1}, "fail": {"count": 1}}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_prediction_that_is_no_number_is_an_error_that_names_it(
    predictor: Predictor, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = FrozenNetwork(predictor.folder / NETWORK, 1)

    def logits(inputs: Any) -> Any:
        found = network.logits(inputs)
        found[2, 1] = value
        return found

    monkeypatch.setattr(predictor, "_network", SimpleNamespace(logits=logits))
    monkeypatch.setattr(predictor, "_links", ["identity", "identity"])
    rows = {"instances": [{"user": 1, "item": 4, "words": ["lamp"], "price": 0.5}] * 3}
    app = serving(predictor)
    for answer in (infer(app, INPUTS), ask(app, "POST", PREDICT, json.dumps(rows).encode())):
        assert answer.status == 500
        assert f"{value} as buy_probability of sample 2" in answer.json()["error"]
