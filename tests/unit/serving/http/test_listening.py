"""The access to a server is decided before it starts."""

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from persia_cli.errors import UserError
from persia_cli.main import app
from persia_cli.serving.http.listening import address_of, require_certificate
from tests.support.small_model import write_small_model


def test_other_machines_need_a_token_or_a_certificate() -> None:
    for host in ("127.0.0.1", "localhost"):
        assert address_of(host, 0, is_guarded=False).host in ("127.0.0.1", "::1")
    for host in ("0.0.0.0", "::"):
        with pytest.raises(UserError, match="--token-file"):
            address_of(host, 0, is_guarded=False)
    assert address_of("0.0.0.0", 0, is_guarded=True).host == "0.0.0.0"


def test_a_port_in_use_and_a_host_that_is_none_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen at 127.0.0.1:{port}"):
            address_of("127.0.0.1", port, is_guarded=False)
    with pytest.raises(UserError, match=r"--host no\.such\.host\.invalid"):
        address_of("no.such.host.invalid", 0, is_guarded=True)


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    with pytest.raises(UserError, match=r"cert\.pem"):
        require_certificate(file, file)
    file.write_text("nonsense")
    with pytest.raises(UserError, match=r"cert\.pem"):
        require_certificate(file, file)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0", "--port", "0"], "lets other machines ask"),
        (["--tls", "cert.pem", "key.pem"], "key.pem"),
        (["--token-file", "nowhere"], "nowhere"),
    ],
)
def test_the_command_refuses_what_is_not_guarded(tmp_path: Path, options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["serve", str(write_small_model(tmp_path / "shop")), *options])
    assert isinstance(result.exception, UserError)
    assert words in str(result.exception)


def test_a_model_with_a_missing_file_is_not_served(tmp_path: Path) -> None:
    folder = write_small_model(tmp_path / "shop")
    assert json.loads((folder / "model.json").read_text())["name"] == "shop"
    (folder / "dense.onnx").unlink()
    result = CliRunner().invoke(app, ["serve", str(folder)])
    assert "dense.onnx is missing" in str(result.exception)
