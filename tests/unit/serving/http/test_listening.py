"""The access to a server is decided before it starts."""

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from persia_cli.errors import UserError
from persia_cli.main import app
from persia_cli.serving.http.listening import bound, bound_to_path, require_certificate
from tests.support.small_model import write_small_model


def test_other_machines_need_a_token_or_a_certificate() -> None:
    for host in ("127.0.0.1", "localhost"):
        with bound(host, 0, is_guarded=False) as listener:
            assert listener.getsockname()[0] in ("127.0.0.1", "::1")
    for host in ("0.0.0.0", "::"):
        with pytest.raises(UserError, match="--token-file"):
            bound(host, 0, is_guarded=False)
    with bound("0.0.0.0", 0, is_guarded=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6")
    with bound("::", 0, is_guarded=True) as listener:
        listener.listen()
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.getsockname()[1]), timeout=5).close()


def test_a_unix_socket_replaces_that_of_a_dead_server_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    bound_to_path(path).close()  # as a server that is killed leaves it
    with bound_to_path(path) as listener:
        listener.listen()
        with pytest.raises(UserError, match="a server listens there"):
            bound_to_path(path)
    path.unlink()
    path.write_text("mine")
    for other in (path, tmp_path / "no" / "folder", tmp_path / ("long" * 30)):
        with pytest.raises(UserError, match="cannot listen there"):
            bound_to_path(other)
    assert path.read_text() == "mine"


def test_a_port_in_use_and_a_host_that_is_none_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen at 127.0.0.1:{port}"):
            bound("127.0.0.1", port, is_guarded=False)
    with pytest.raises(UserError, match=r"--host no\.such\.host\.invalid"):
        bound("no.such.host.invalid", 0, is_guarded=True)


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
        (["--unix", "socket", "--port", "0"], "--unix PATH is instead of"),
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
