"""`persia serve` where others can reach it, next to another server, and where its folder changes meanwhile."""

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from persia_cli.serving.description import note_of, read_description, write_description
from persia_cli.serving.http.processes import PREFIX
from tests.conftest import poll_for
from tests.support.asgi import Response, outputs_of
from tests.support.small_model import write_small_model
from tests.system.test_serve import BODY, INFER, READY_S, expected, serving

PERSIA = Path(sys.executable).parent / "persia"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "shop")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a token, a certificate of localhost, its key, the same with a passphrase, and another key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("secrets")
    token = folder / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    for command in (
        f"{make} -addext subjectAltName=DNS:localhost,IP:127.0.0.1",
        "openssl pkey -in key.pem -out locked.pem -aes256 -passout pass:secret",
        "openssl genpkey -algorithm RSA -out other.pem",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_https_and_a_token_guard_a_server(model: Path, secrets: Path, tmp_path: Path) -> None:
    files = ["--tls", secrets / "cert.pem", secrets / "key.pem", "--token-file", secrets / "token"]
    with serving(model, tmp_path / "guarded", "--workers", "1", "--host", "0.0.0.0", *map(str, files)) as server:
        assert "every client that reaches this machine and has the token; encrypted" in server.log.read_text()
        context = ssl.create_default_context(cafile=secrets / "cert.pem")

        def ask(path: str, body: bytes, **headers: str) -> Response:
            connection = http.client.HTTPSConnection("localhost", server.port, timeout=20, context=context)
            try:
                connection.request("POST" if body else "GET", path, body or None, headers)
                got = connection.getresponse()
                return Response(got.status, dict(got.getheaders()), got.read())
            finally:
                connection.close()

        assert outputs_of(ask(INFER, BODY, Authorization="Bearer 0123456789abcdef")) == expected(model)
        assert ask(INFER, BODY, Authorization="Bearer 0123456789abcdeF").status == 401
        assert ask(INFER, BODY).status == 401
        assert ask("/v2/health/ready", b"").status == 200
        # A client without the certificate does not ask, and one with plain HTTP gets no answer.
        with pytest.raises(ssl.SSLCertVerificationError), socket.create_connection(("localhost", server.port)) as plain:
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            server.ask("GET", "/v2/health/live")
        assert outputs_of(ask(INFER, BODY, Authorization="bearer 0123456789abcdef")) == expected(model)
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("other.pem", "cannot be used together"),
        ("locked.pem", "has a passphrase"),
        ("token", "cannot be used together"),
    ],
)
def test_a_wrong_key_is_named(model: Path, secrets: Path, key: str, words: str) -> None:
    command = [PERSIA, "serve", model, "--port", "0", "--tls", secrets / "cert.pem", secrets / key]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, stdin=subprocess.DEVNULL)
    assert (ended.returncode, words in ended.stderr, "Traceback" in ended.stderr) == (2, True, False), ended.stderr


@pytest.mark.slow
def test_two_servers_of_one_model_run_together_but_not_on_one_port(model: Path, tmp_path: Path) -> None:
    """One of them at an address of IPv6."""
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with serving(model, tmp_path / "one", "--workers", "1") as one, serving(
        model, tmp_path / "two", "--workers", "1", "--host", "::1"
    ) as two:  # fmt: skip
        assert f"at http://[::1]:{two.port}," in two.log.read_text()
        connection = http.client.HTTPConnection("::1", two.port, timeout=20)
        connection.request("POST", INFER, BODY)
        assert outputs_of(Response(200, {}, connection.getresponse().read())) == expected(model)
        connection.close()
        third = subprocess.run(
            [PERSIA, "serve", model, "--port", str(one.port)], capture_output=True, text=True, timeout=READY_S
        )
        assert third.returncode == 2
        assert f"cannot listen at 127.0.0.1:{one.port}" in third.stderr
        assert outputs_of(one.ask("POST", INFER, BODY)) == expected(model)


@pytest.mark.slow
def test_no_worker_serves_another_model_than_the_others(model: Path, tmp_path: Path) -> None:
    """A server whose folder is replaced ends with a sentence when a worker has to be replaced."""
    folder = tmp_path / "shop"
    shutil.copytree(model, folder)
    with serving(folder, tmp_path / "replaced", "--workers", "2") as server:
        folder.rename(tmp_path / "before")
        shutil.copytree(model, folder)
        write_description(folder, msgspec.structs.replace(read_description(folder), step=18))
        for _ in range(20):
            answer = server.ask("POST", INFER, BODY)
            assert answer.json()["model_version"] == "17"
            assert outputs_of(answer) == expected(model)
        os.kill(server.workers()[0].pid, signal.SIGKILL)
        assert server.process.wait(READY_S) == 2
        assert "is another model now" in server.log.read_text()


@pytest.mark.slow
def test_the_server_after_a_killed_one_takes_its_files_away(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "killed", "--workers", "2") as server:
        (left,) = (tmp_path / "killed" / "tmp").glob(f"{PREFIX}*")
        workers = server.workers()
        server.process.kill()
        server.process.wait(10)
        poll_for(lambda: not any(each.is_running() for each in workers), 10.0, "the workers end with their parent")
    # A server of which nothing is asked but that it cannot be.
    environment = os.environ | {"TMPDIR": str(left.parent)}
    (tmp_path / "shop").mkdir()
    shutil.copytree(model, tmp_path / "shop", dirs_exist_ok=True)
    golden = tmp_path / "shop" / "golden.arrow"
    golden.write_bytes(bytes(golden.stat().st_size))
    description = read_description(golden.parent)
    files = [note_of(golden.parent, note.path) for note in description.files]
    write_description(golden.parent, msgspec.structs.replace(description, files=files))
    ended = subprocess.run(
        [PERSIA, "serve", tmp_path / "shop", "--port", "0"], capture_output=True, timeout=READY_S, env=environment
    )
    assert ended.returncode != 0
    assert list(left.parent.glob(f"{PREFIX}*")) == []


@pytest.mark.slow
def test_missing_ids_may_begin_as_in_training(model: Path, tmp_path: Path) -> None:
    """Golden samples are predicted as evaluation did, with zeros, before."""
    with serving(model, tmp_path / "init", "--workers", "1", "--missing", "init") as server:
        answer = outputs_of(server.ask("POST", INFER, BODY))
        assert list(answer) == list(expected(model))
        assert answer != expected(model)


@pytest.mark.slow
def test_a_worker_that_stands_still_is_replaced(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "still", "--workers", "2") as server:
        poll_for(lambda: len(server.workers()) == 2, READY_S, "both are there")
        still = server.workers()[0]
        still.suspend()
        poll_for(lambda: not still.is_running(), READY_S, "it is killed")
        poll_for(lambda: len(server.workers()) == 2, READY_S, "the next worker is there")
        assert outputs_of(server.ask("POST", INFER, BODY)) == expected(model)
