"""Start time and memory of `persia serve`, also with more rows than there could be copies of."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from persia_cli.serving.predictor import Predictor
from tests.support.asgi import outputs_of, tensor
from tests.support.large_model import DIM, ids_of, logits_of, write_large_model
from tests.support.small_model import write_small_model
from tests.system.test_serve import Server, serving

READY_S = 3.0
OWN_BYTES = 150e6
LARGE_BYTES = 10e9
INFER = "/v2/models/large/infer"


def ask_for(server: Server, places: np.ndarray, rows: int) -> None:  # type: ignore[type-arg]
    """Ask for some rows of the large model, and compare the answer."""
    body = json.dumps({"inputs": [tensor("item", "UINT64", ids_of(places, rows).tolist())]}).encode()
    found = outputs_of(server.ask("POST", INFER, body))["click_probability"]
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
def test_a_server_is_ready_soon(tmp_path: Path) -> None:
    """The best of three: others may have the processor meanwhile."""
    model = write_small_model(tmp_path / "shop")
    taken = [ready_after(model, tmp_path / str(number), "--workers", "1") for number in range(3)]
    assert min(taken) <= READY_S, taken


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
        assert min(taken) <= READY_S, taken
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
