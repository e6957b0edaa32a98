"""A token is long and private, and changes with its file."""

import logging
from pathlib import Path

import pytest

from persia_cli.errors import UserError
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.http.token_file import TokenFile, read_token
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import ask

OLD, NEW = "the-secret-of-the-shop", "another-secret-of-it"


def write(file: Path, token: str, mode: int = 0o600) -> None:
    file.unlink(missing_ok=True)
    file.write_text(token + "\n")
    file.chmod(mode)


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
