"""`persia serve`, in separate processes that cannot import torch."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from persia_cli.serving.description import read_description, write_description
from persia_cli.serving.predictor import Predictor
from tests.conftest import poll_for
from tests.support.asgi import Response, binary, outputs_of, tensor
from tests.support.large_model import DIM, ids_of, logits_of, write_large_model
from tests.support.small_model import LARGE, write_small_model

INFER = "/v2/models/shop/infer"
READY_S = 120.0
INPUTS = [
    tensor("user", "UINT64", [LARGE]),
    tensor("item", "INT64", [4, 5, 99]),
    tensor("words", "BYTES", ["lamp", "sofa", "chair"]),
    tensor("words.lengths", "INT32", [1, 0, 2]),
    tensor("price", "FP32", np.array([0.1, 2.5, -3.7], np.float32).tolist()),
]
BODY = json.dumps({"inputs": INPUTS}).encode()


class Server:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, port: int) -> None:
        self.process, self.log, self.port = process, log, port

    def workers(self) -> list[psutil.Process]:
        """Return the processes of workers."""
        found = []
        for each in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # of one that has just ended
                if "spawn_main" in " ".join(each.cmdline()):
                    found.append(each)
        return found

    def are_ready(self) -> bool:
        """Return True if both workers have mapped their rows, and so imported their code."""
        workers = self.workers()
        with suppress(psutil.Error):
            return len(workers) == 2 and all(
                any(each.path.endswith("0.values") for each in worker.memory_maps()) for worker in workers
            )
        return False

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def ask(self, method: str, path: str, body: bytes = b"", headers: Any = None) -> Response:
        """Answer a request on a separate connection."""
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            got = connection.getresponse()
            return Response(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        finally:
            connection.close()


@contextmanager
def serving(model: Path, folder: Path, *options: str) -> Iterator[Server]:
    """Run `persia serve` until the end of the block."""
    folder.mkdir()
    (folder / "no" / "torch").mkdir(parents=True)
    (folder / "no" / "torch" / "__init__.py").write_text("raise ImportError('torch must not be needed')\n")
    (folder / "tmp").mkdir()
    log = folder / "log"
    persia = Path(sys.executable).parent / "persia"
    environment = os.environ | {"PYTHONPATH": str(folder / "no"), "TMPDIR": str(folder / "tmp")}
    with log.open("wb") as file:
        place = [] if "--unix" in options else ["--port", "0"]
        process = subprocess.Popen([persia, "serve", model, *place, *options], stderr=file, env=environment)
    try:
        poll_for(lambda: process.poll() is not None or b"open to" in log.read_bytes(), READY_S, "the server is ready")
        assert "open to" in log.read_text(), log.read_text()
        found = re.search(r"at https?://\S+:(\d+),", log.read_text())
        yield Server(process, log, int(found[1]) if found else 0)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "shop")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers."""
    with serving(model, tmp_path_factory.mktemp("serve") / "two", "--workers", "2") as running:
        yield running


def expected(model: Path) -> dict[str, list[float]]:
    """Return the predictions of the model in this process."""
    predictor = Predictor.open(model)
    columns = {
        "user": np.array([LARGE], np.uint64), "item": [4, 5, 99], "words": [["lamp"], [], ["sofa", "chair"]],
        "price": np.array([0.1, 2.5, -3.7], np.float32),
    }  # fmt: skip
    values = predictor.predict(predictor.fields.batch(columns)).values
    return {"click_probability": values[:, 0].tolist(), "buy_probability": values[:, 1].tolist()}


def test_json_and_bytes_over_http_have_the_bits_of_this_process(server: Server, model: Path) -> None:
    assert outputs_of(server.ask("POST", INFER, BODY)) == expected(model)
    body, headers = binary(INPUTS, parameters={"binary_data_output": True})
    assert outputs_of(server.ask("POST", INFER, body, headers)) == expected(model)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    """A client of Triton that has asked once; its library keeps an event loop to the end of the process."""
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    found = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert found.is_server_live()
    yield found
    found.close()


def test_a_client_of_triton_works_as_it_is(client: Any, model: Path) -> None:
    import tritonclient.http as triton

    assert client.is_model_ready("shop", "17")
    assert not client.is_model_ready("shop", "3")
    assert [each["name"] for each in client.get_model_metadata("shop")["outputs"]] == list(expected(model))
    assert [each["name"] for each in client.get_model_config("shop")["output"]] == list(expected(model))
    kinds = {"UINT64": np.uint64, "INT64": np.int64, "INT32": np.int32, "FP32": np.float32, "BYTES": np.object_}
    for is_binary in (True, False):
        inputs = []
        for each in INPUTS:
            values = [x.encode() if isinstance(x, str) else x for x in each["data"]]
            inputs.append(triton.InferInput(each["name"], each["shape"], each["datatype"]))
            inputs[-1].set_data_from_numpy(np.array(values, kinds[each["datatype"]]), binary_data=is_binary)
        outputs = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in expected(model)]
        found = client.infer("shop", inputs, outputs=outputs, request_id="9")
        assert {name: found.as_numpy(name).tolist() for name in expected(model)} == expected(model)
        assert found.get_response()["id"] == "9"
    same = client.infer("shop", inputs, request_compression_algorithm="gzip")
    assert {name: same.as_numpy(name).tolist() for name in expected(model)} == expected(model)
    [stats] = client.get_inference_statistics("shop")["model_stats"]
    assert stats["inference_stats"]["success"]["count"] >= 3
    with pytest.raises(triton.InferenceServerException, match="no field user"):
        client.infer("shop", inputs[1:])
    client.close()  # its connections, one of which is new


def counted(server: Server) -> int:
    """Return the number of requests for predictions that the server has answered, by its counters."""
    text = server.ask("GET", "/metrics").body.decode()
    found = re.search(r'persia_requests_total\{route="infer",status="200"\} (\d+)', text)
    return int(found[1]) if found else 0


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_the_other_answers_on(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "two", "--workers", "2") as server:
        asked = 0
        shutil.rmtree(tmp_path / "two" / "tmp")  # as those do who clean up
        before = {worker.pid for worker in server.workers()}
        for pid in before:
            poll_for(server.are_ready, READY_S, "both workers are there")
            known = {worker.pid for worker in server.workers()}
            os.kill(pid, signal.SIGKILL)

            def is_whole(gone: int = pid, known: frozenset[int] = frozenset(known)) -> bool:
                nonlocal asked
                assert outputs_of(server.ask("POST", INFER, BODY)) == expected(model)
                asked += 1
                now = {worker.pid for worker in server.workers()}
                return len(now) == 2 and gone not in now and f"worker {gone} was killed" in server.log.read_text()

            poll_for(is_whole, READY_S, "the next worker is there")
        # The counts of a dead worker are not lost.
        assert counted(server) == asked
        assert 'persia_worker_failures_total{reason="died"} 2.0' in server.ask("GET", "/metrics").body.decode()


@pytest.mark.slow
def test_sigterm_finishes_what_was_begun(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "drain", "--workers", "1") as server:
        begun, idle = server.connect(), server.connect()
        idle.connect()
        try:
            begun.putrequest("POST", INFER)
            begun.putheader("Content-Length", str(len(BODY)))
            begun.endheaders(BODY[:10])
            # A later request is answered, so the worker has this one's beginning.
            poll_for(lambda: server.ask("GET", "/v2/health/live").status == 200, 10.0, "the worker answers")
            server.process.terminate()
            poll_for(lambda: is_refused(server), 10.0, "new clients are refused")
            begun.send(BODY[10:])
            got = begun.getresponse()
            assert outputs_of(Response(got.status, {}, got.read())) == expected(model)
        finally:
            begun.close()
            idle.close()
        assert server.process.wait(20) == 0
    assert list((tmp_path / "drain" / "tmp").glob("persia*")) == []


def is_refused(server: Server) -> bool:
    connection = server.connect()
    try:
        connection.connect()
    except ConnectionRefusedError:
        return True
    finally:
        connection.close()
    return False


@pytest.mark.slow
def test_a_killed_parent_leaves_no_process(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "killed", "--workers", "2") as server:
        workers = server.workers()
        server.process.kill()
        server.process.wait(10)
        poll_for(lambda: not any(each.is_running() for each in workers), 10.0, "the workers end with their parent")


@pytest.mark.slow
def test_a_model_that_fails_its_golden_samples_is_not_served(model: Path, tmp_path: Path) -> None:
    import shutil

    from persia_cli.serving.description import note_of, read_description, write_description
    from persia_cli.serving.golden import Golden, read_golden, write_golden

    other = tmp_path / "shop"
    shutil.copytree(model, other)
    description = read_description(other)
    golden = read_golden(other, description)
    wrong = Golden(golden.batch, golden.logits + np.float32(0.01))
    write_golden(other, ["user", "item", "words"], ["click", "buy"], wrong)
    files = [note_of(other, note.path) for note in description.files]
    write_description(other, msgspec.structs.replace(description, files=files))
    persia = Path(sys.executable).parent / "persia"
    ended = subprocess.run(
        [persia, "serve", other, "--port", "0", "--workers", "2"], capture_output=True, text=True, timeout=READY_S
    )
    assert ended.returncode == 2
    assert "does not predict click_probability of its golden samples" in ended.stderr
    assert "Traceback" not in ended.stderr


PERSIA = Path(sys.executable).parent / "persia"


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


def replace_model(folder: Path, model: Path, step: int) -> None:
    """Replace a served folder as a whole, as `persia export --overwrite` does."""
    new = folder.with_name(f"step-{step}")
    shutil.copytree(model, new)
    write_description(new, msgspec.structs.replace(read_description(new), step=step))
    folder.rename(folder.with_name(f"before-{step}"))
    new.rename(folder)


def versions(server: Server, number: int = 20) -> set[str]:
    """Return the versions of models that give a few predictions."""
    return {server.ask("POST", INFER, BODY).json()["model_version"] for _ in range(number)}


@pytest.mark.slow
def test_a_new_model_is_taken_by_all_workers_at_sighup_or_when_one_dies(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(model, folder)
    with serving(folder, tmp_path / "replaced", "--workers", "2") as server:
        poll_for(server.are_ready, READY_S, "both workers are there")
        replace_model(folder, model, 18)
        assert versions(server) == {"17"}
        os.kill(server.process.pid, signal.SIGHUP)
        poll_for(lambda: versions(server) == {"18"}, READY_S, "all workers have the new model")
        replace_model(folder, model, 19)
        server.workers()[0].kill()
        poll_for(lambda: versions(server) == {"19"}, READY_S, "all workers have the newest model")
        assert "the folder has another model now: shop, step 19" in server.log.read_text()


@pytest.mark.slow
def test_a_worker_that_cannot_start_leaves_the_others_alone(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(model, folder)
    with serving(folder, tmp_path / "broken", "--workers", "2") as server:
        poll_for(server.are_ready, READY_S, "both workers are there")
        (folder / "dense.onnx").rename(tmp_path / "dense.onnx")
        server.workers()[0].kill()

        def failed() -> bool:
            assert server.ask("POST", INFER, BODY).status == 200
            return 'persia_worker_failures_total{reason="start"}' in server.ask("GET", "/metrics").body.decode()

        poll_for(failed, READY_S, "the next worker has failed")
        os.kill(server.process.pid, signal.SIGHUP)
        poll_for(lambda: server.log.read_text().count("a worker cannot start") > 1, READY_S, "and one more")
        assert failed()
        (tmp_path / "dense.onnx").rename(folder / "dense.onnx")
        poll_for(server.are_ready, READY_S, "both workers are there again")
        # A server none of whose workers can start ends, and not as if it had been asked to.
        (folder / "dense.onnx").unlink()
        for worker in server.workers():
            worker.kill()
        assert server.process.wait(READY_S) == 2
        assert "dense.onnx" in server.log.read_text().splitlines()[-1]


@pytest.mark.slow
def test_a_worker_that_stands_still_is_replaced(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "still", "--workers", "2") as server:
        poll_for(lambda: b"persia_workers 2.0" in server.ask("GET", "/metrics").body, READY_S, "both are ready")
        still = server.workers()[0]
        still.suspend()
        poll_for(lambda: not still.is_running(), READY_S, "it is killed")
        poll_for(lambda: len(server.workers()) == 2, READY_S, "the next worker is there")
        assert outputs_of(server.ask("POST", INFER, BODY)) == expected(model)


SOON_S = 3.0
OWN_BYTES = 150e6
LARGE_BYTES = 10e9
INFER_LARGE = "/v2/models/large/infer"


def ask_for(server: Server, places: np.ndarray, rows: int) -> None:  # type: ignore[type-arg]
    """Ask for some rows of the large model, and compare the answer."""
    body = json.dumps({"inputs": [tensor("item", "UINT64", ids_of(places, rows).tolist())]}).encode()
    found = outputs_of(server.ask("POST", INFER_LARGE, body))["click_probability"]
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits_of(places)[:, 0])), atol=1e-6)


def own_bytes(process: psutil.Process, model: Path) -> int:
    """Return the memory that this process alone has; a page of a model's file is shared by all processes."""
    maps = process.memory_maps(grouped=True)
    return sum(each.private_clean + each.private_dirty for each in maps if not each.path.startswith(str(model)))


def ready_after(model: Path, folder: Path, *options: str) -> float:
    """Seconds from the start of the command until all workers are ready."""
    begin = time.monotonic()
    with serving(model, folder, *options):
        return time.monotonic() - begin


def test_the_large_model_predicts_correctly(tmp_path: Path) -> None:
    rows = 300_000
    predictor = Predictor.open(write_large_model(tmp_path / "large", rows))
    places = np.array([0, 1, 5, 262_144, rows - 1])
    found = predictor.predict(predictor.fields.batch({"item": ids_of(places, rows)}))
    assert found.missing.tolist() == [0]
    np.testing.assert_allclose(found.logits, logits_of(places), atol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_gigabytes_are_ready_as_soon_and_shared_by_all_workers(tmp_path: Path) -> None:
    if psutil.virtual_memory().available < 1.4 * LARGE_BYTES or shutil.disk_usage(tmp_path).free < 2 * LARGE_BYTES:
        pytest.skip("10 GB of rows need 14 GB of memory and 20 GB of disk")
    rows = int(LARGE_BYTES) // (4 * DIM)
    model = tmp_path / "large"
    try:
        write_large_model(model, rows)
        for path in sorted((model / "rows").iterdir()):  # so that they are in the page cache
            with path.open("rb", buffering=0) as file:
                while file.read(2**24):
                    pass
        taken = [ready_after(model, tmp_path / str(number), "--workers", "1") for number in range(3)]
        assert min(taken) <= SOON_S, taken
        with serving(model, tmp_path / "four", "--workers", "4") as server:
            draw = np.random.default_rng(3)
            for _ in range(100):
                ask_for(server, draw.integers(0, rows, 1000), rows)
            assert len(server.workers()) == 4
            own = [own_bytes(worker, model) for worker in server.workers()]
            assert max(own) <= OWN_BYTES, own
            print(f"ready after {taken} s; own memory of workers {own} bytes")
    finally:
        shutil.rmtree(model)
