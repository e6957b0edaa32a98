"""`persia serve`, in separate processes that cannot import torch."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from persia_cli.serving.predictor import Predictor
from tests.conftest import poll_for
from tests.support.asgi import Response, binary, outputs_of, tensor
from tests.support.small_model import LARGE, write_small_model

INFER = "/v2/models/shop/infer"
READY_S = 60.0
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
        """Return the processes of several workers; a single one is the server itself."""
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
        process = subprocess.Popen([persia, "serve", model, "--port", "0", *options], stderr=file, env=environment)
    try:
        poll_for(lambda: process.poll() is not None or b"open to" in log.read_bytes(), READY_S, "the server is ready")
        found = re.search(r"at https?://\S+:(\d+),", log.read_text())
        assert found, log.read_text()
        yield Server(process, log, int(found[1]))
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

    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("shop", "17")
    assert not client.is_model_ready("shop", "3")
    assert client.get_server_metadata()["name"] == "persia"
    assert [each["name"] for each in client.get_model_metadata("shop")["outputs"]] == list(expected(model))
    kinds = {"UINT64": np.uint64, "INT64": np.int64, "INT32": np.int32, "FP32": np.float32, "BYTES": np.object_}
    for is_binary in (True, False):
        inputs = []
        for each in INPUTS:
            values = [x.encode() if isinstance(x, str) else x for x in each["data"]]
            inputs.append(triton.InferInput(each["name"], each["shape"], each["datatype"]))
            inputs[-1].set_data_from_numpy(np.array(values, kinds[each["datatype"]]), binary_data=is_binary)
        wanted = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in expected(model)]
        for outputs in (wanted, None):
            found = client.infer("shop", inputs, outputs=outputs, request_id="9")
            assert {name: found.as_numpy(name).tolist() for name in expected(model)} == expected(model)
            assert found.get_response()["id"] == "9"
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
                return len(now) == 2 and gone not in now and f"process [{gone}] died" in server.log.read_text()

            poll_for(is_whole, READY_S, "the next worker is there")
        # The counts of a dead worker are not lost.
        assert counted(server) == asked


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
