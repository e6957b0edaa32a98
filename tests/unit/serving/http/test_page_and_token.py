"""Open pages and guarded ones: the page at `/` is strict with scripts; a token is private and changes with its file."""

import base64
import hashlib
import json
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.read.batch import assemble
from persia_cli.errors import UserError
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.golden import Golden, example_row
from persia_cli.serving.http.admission import TokenFile, read_token
from persia_cli.serving.http.app import PAGE, ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import ask
from tests.support.small_model import LARGE, write_small_model

OLD, NEW = "the-secret-of-the-shop", "another-secret-of-it"


def write(file: Path, token: str, mode: int = 0o600) -> None:
    file.unlink(missing_ok=True)
    file.write_text(token + "\n")
    file.chmod(mode)


def test_the_page_is_open_and_has_nothing_from_elsewhere(predictor: Predictor, tmp_path: Path) -> None:
    write(tmp_path / "token", OLD)
    app = ServingApp(predictor, ServerSettings(str(predictor.folder)), TokenFile(tmp_path / "token"))
    got = ask(app, "GET", "/")
    assert (got.status, got.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = got.body.decode()
    assert re.findall(r"\b(?:src|href|srcset|action)\s*=|https?:|@import|url\(|innerHTML|\son\w+=", text) == []
    assert "shop" not in text
    policy = dict(rule.split(" ", 1) for rule in got.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    for tag in ("script", "style"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", PAGE.read_text(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"


def test_the_example_has_the_ids_and_numbers_of_a_golden_sample(tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "shop")
    app = ServingApp(Predictor.open(model), ServerSettings(str(model)))
    shutil.rmtree(model)  # another export may take its place
    assert ask(app, "GET", "/v1/models").json() == {"models": ["shop"]}
    example = ask(app, "GET", "/v2/models/shop/example").json()
    assert example == {"instances": [{"user": 1, "item": 4, "words": [], "price": 0.5}]}
    assert ask(app, "POST", "/v1/models/shop:predict", json.dumps(example).encode()).status == 200


def test_an_example_can_be_read_by_any_model() -> None:
    fields = RequestFields(
        dense=(DenseFeature(name="bins", transform="piecewise", bins=(0.0, 1.0, 2.0)), DenseFeature(name="price"),
               DenseFeature(name="age")),
        sparse=(
            SparseFeature(name="user", ids="integer"),
            SparseFeature(name="either"),
            SparseFeature(name="seen", ids="integer"),
            SparseFeature(name="wide", buckets=(1.0,)),
            SparseFeature(name="city", ids="integer"),
            SparseFeature(name="device", ids="integer"),
        ),
        lists=("seen",),
        raw=(
            RawColumns(columns=("age",), field="years", read="integer"),
            RawColumns(columns=("city",), field="town", read="text"),
            RawColumns(columns=("device",), read="hexadecimal"),
        ),
    )  # fmt: skip
    ids = [[LARGE], [LARGE], [5, LARGE], [1], [77], [78]]
    for lists in (ids, [[1], [2], [], [1], [3], [4]]):
        batch = assemble(
            dense=np.array([[0.1, 0.2, 0.3, 0.7]], np.float32), labels=np.zeros((1, 0), np.float32), weights=None,
            ids=[np.array(each, np.uint64) for each in lists],
            offsets=[np.array([0, len(each)], np.int64) for each in lists],
        )  # fmt: skip
        row = example_row(fields, Golden(batch, np.zeros((1, 1), np.float32)))
        assert row["price"] == 0.3
        assert (row["wide"], row["town"], row["device"], row["bins"], row["years"]) == (0, None, None, 0, 0)
        large = lists is ids
        assert row["user"] == (str(LARGE) if large else 1)
        assert row["either"] == (0 if large else 2)
        assert row["seen"] == (["5", str(LARGE)] if large else [])
        read = fields.batch({name: [value] for name, value in row.items()})
        assert read.size == 1
        assert read.ids[0] == lists[0][0]


def test_a_token_is_long_and_private(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text, mode, words in (("x" * 16, 0o644, "chmod 600"), ("short", 0o600, "16 characters")):
        write(file, text, mode)
        with pytest.raises(UserError, match=words):
            read_token(file)
    write(file, "x" * 16)
    assert read_token(file) == b"x" * 16


def test_without_its_token_only_health_is_answered(predictor: Predictor, tmp_path: Path) -> None:
    file = tmp_path / "token"
    write(file, "secret-of-the-shop")
    app = ServingApp(predictor, ServerSettings(str(predictor.folder)), TokenFile(file))
    for path in ("/v2", "/metrics", "/v2/models/shop"):
        for headers in ({}, {"authorization": "Bearer secret-of-the-sho"}, {"authorization": "Bearer sécret"}):
            answer = ask(app, "GET", path, headers=headers)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert ask(app, "GET", path, headers={"authorization": "Bearer secret-of-the-shop"}).status == 200
    assert ask(app, "POST", "/v2/models/shop/infer", b"{}").status == 401
    assert ask(app, "GET", "/v2/health/ready").status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"host": "127.0.0.1:9", "origin": "HTTP://127.0.0.1:9"}, 200),
        ({"host": "[::1]:9"}, 200),
        ({"host": "Lamp"}, 200),  # as --host
        ({"host": "lamp.evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8000"}, 421),
        ({"host": "10.0.0.7:8000"}, 421),
        ({"host": ""}, 421),
        ({"host": "localhost:8000", "origin": "http://evil.example"}, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:8888"}, 403),
        ({"host": "localhost:8000", "origin": "null"}, 403),
        # Behind a proxy that replaced Host.
        ({"host": "127.0.0.1:8000", "origin": "https://shop.example", "sec-fetch-site": "same-origin"}, 200),
        ({"host": "127.0.0.1:8000", "origin": "https://shop.example", "sec-fetch-site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_get_and_do_nothing(
    predictor: Predictor, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    near = ServingApp(predictor, ServerSettings(str(predictor.folder), host="lamp"))
    token = tmp_path / "token"
    write(token, OLD)
    far = ServerSettings(str(predictor.folder), host="0.0.0.0", is_near=False)
    body = json.dumps({"instances": [{"user": 1, "item": 2, "words": [], "price": 1.0}]}).encode()
    for method, path in (("GET", "/v2/models/shop/example"), ("GET", "/metrics"), ("POST", "/v1/models/shop:predict")):
        found = ask(near, method, path, body, headers=headers)
        assert (found.status, "error" in found.body.decode()) == (status, status != 200), found.body
        # Beyond this machine there is a certificate, which a name that leads here does not fit, or a token.
        allowed = ask(ServingApp(predictor, far), method, path, body, headers=headers).status
        assert allowed == (403 if status == 403 else 200)
        key = {**headers, "authorization": f"Bearer {OLD}"}
        assert ask(ServingApp(predictor, far, TokenFile(token)), method, path, body, headers=key).status == 200


def test_a_probe_by_the_address_of_a_pod_is_answered(predictor: Predictor) -> None:
    far = ServingApp(predictor, ServerSettings(str(predictor.folder), host="0.0.0.0", is_near=False))
    assert ask(far, "GET", "/v2/health/ready", headers={"host": "10.42.0.17:8000"}).status == 200


def test_requests_bring_the_token_that_is_in_the_file_now(
    predictor: Predictor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    write(file, OLD)
    token = TokenFile(file)
    app = ServingApp(predictor, ServerSettings(str(predictor.folder)), token)

    def accepted() -> list[str]:
        asked = {each: ask(app, "GET", "/v2", headers={"authorization": f"Bearer {each}"}) for each in (OLD, NEW)}
        return [each for each, answer in asked.items() if answer.status == 200]

    token.look()
    assert accepted() == [OLD]
    assert not caplog.records
    write(file, NEW)
    with caplog.at_level(logging.WARNING):
        token.look()
    assert accepted() == [NEW]
    assert "is now the new one" in caplog.text
    assert NEW not in caplog.text


@pytest.mark.parametrize(("text", "mode", "says"), [(NEW, 0o644, "chmod 600"), ("", 0o600, "16 characters")])
def test_a_file_that_cannot_be_used_leaves_the_token_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, mode: int, says: str
) -> None:
    file = tmp_path / "token"
    write(file, OLD)
    token = TokenFile(file)
    write(file, text, mode)
    for _ in range(3):
        token.look()
    assert token.token() == OLD.encode()
    assert [says in each.getMessage() for each in caplog.records] == [True]
    file.unlink()
    token.look()
    assert token.token() == OLD.encode()
    write(file, NEW)
    token.look()
    assert token.token() == NEW.encode()
