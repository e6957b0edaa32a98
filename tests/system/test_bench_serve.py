"""`persia bench serve` starts a server, loads it from a third process, and leaves none of them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from persia_cli.bench.serving import ServingPlan, measure_serving
from tests.support.click_model import write_click_model
from tests.support.printed import key_values
from tests.support.small_model import NAME, write_small_model

pytestmark = pytest.mark.processes
LIMIT_S = 170.0
CLOSED = ("4 connections, 20 candidates", "4 connections, 1 candidate")


def bench(*words: str | Path, temporary: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "persia_cli", "bench", "serve", *words], capture_output=True, text=True,
        timeout=LIMIT_S, env=os.environ | {"TMPDIR": str(temporary)},
    )  # fmt: skip
    assert [path.name for path in temporary.iterdir() if path.name.startswith("persia-")] == []
    left = [each for each in psutil.process_iter(["cmdline"]) if str(temporary) in " ".join(each.info["cmdline"] or [])]
    assert left == []
    return done


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / NAME)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "t"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_a_server_against_its_network_alone(model: Path, temporary: Path) -> None:
    done = bench(model, "--candidates", "20", "--user", "user", "--quick", "--json", temporary=temporary)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert (told["benchmark"], told["quick"]) == ("serve", True)
    assert told["model"].startswith(f"{NAME}, ffnn, 3 features, 1 dense")
    assert "3 golden samples" in told["requests"]
    *closed, below, above = told["results"]
    assert tuple(each["name"] for each in closed) == CLOSED
    for each, candidates in zip(closed, (20, 1), strict=True):
        ours, alone = each["sides"]
        assert ours["ratios"] == {alone["name"]: pytest.approx(ours["median"] / alone["median"])}
        assert 0 < ours["requests_per_s"] == pytest.approx(ours["median"] / candidates, rel=0.01)
        assert 0 < ours["latency_ms"]["p50"] <= ours["latency_ms"]["p99"]
        assert ours["busy"] == ours["errors"] == 0
        assert ours["cpu_ms"].keys() == {"server", "sender"}
        assert ours["cpu_ms"]["server"] > 0
    assert "50%" in below["name"]
    assert "150%" in above["name"]
    assert below["sides"][0]["errors"] == above["sides"][0]["errors"] == 0
    assert 0 < below["sides"][0]["offered_per_s"] < above["sides"][0]["offered_per_s"]
    assert [side["offered_per_s"] for each in closed for side in each["sides"]] == [None] * 4


@pytest.mark.slow
def test_for_people_and_in_json_at_a_rate(model: Path, temporary: Path) -> None:
    words = ["--body", "json", "--rate", "100", "--connections", "2", "--quick"]
    done = bench(model, *words, temporary=temporary)
    assert done.returncode == 0, done.stderr
    rows = [key_values(line) for line in done.stdout.splitlines() if line.startswith("load=")]
    names = [row["load"] for row in rows]
    assert names[0] == "2 connections, 100 candidates"
    assert names[-1] == "random moments, 100/s, 100 candidates"
    assert float(rows[-1]["requests_s"]) == pytest.approx(100, abs=60)
    assert all(row["errors"] == "0" for row in rows if "errors" in row)
    assert done.stdout.splitlines()[2].startswith("requests  JSON, of 3 golden samples")
    assert done.stderr.splitlines()[-1].startswith(f"next      persia serve {model}")


def test_a_meaningless_rate_is_refused(model: Path, temporary: Path) -> None:
    done = bench(model, "--rate", "0.1", "--seconds", "1", temporary=temporary)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--rate 0.1 for --seconds 1 are 0.1 requests" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [2.0, 4.0, 7.0])
def test_an_interrupt_of_the_terminal_ends_all_quietly(model: Path, temporary: Path, after_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "persia_cli", "bench", "serve", model, "--seconds", "5"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(temporary)},
        start_new_session=True,
    )  # fmt: skip
    with suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    mine = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "KeyboardInterrupt" not in errors
    assert psutil.wait_procs(mine, timeout=20.0)[1] == []


def test_a_folder_that_is_no_model_and_a_field_that_it_has_not(model: Path, temporary: Path) -> None:
    done = bench(temporary, temporary=temporary)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is no exported model" in done.stderr
    done = bench(model, "--user", "age", "--quick", temporary=temporary)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the model has no field age" in done.stderr


@pytest.mark.slow
def test_more_than_the_server_can_answer_is_refused_and_takes_no_memory(tmp_path: Path) -> None:
    """Its speed is the machine's; that it answers on, makes no mistakes and does not grow is its own."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    model = write_click_model(tmp_path / "clicks", rows=2000, hidden=(400, 400, 400))
    measured = measure_serving(ServingPlan(model, seconds=10.0, rounds=1), lambda text: None)
    many, single, half, over = (result.sides[0] for result in measured.results)
    assert many.errors == single.errors == half.errors == over.errors == 0
    assert many.busy == single.busy == half.busy == 0
    assert half.ratios["saturation"] == pytest.approx(0.5, abs=0.1)
    assert over.busy > 0
    assert over.ratios["saturation"] > 0.6
    # A request that has a place waits for at most 63 others.
    assert over.latency_ms["p50"] < 2 * 64 * 1e3 / (many.requests_per_s or 1.0)
    before, after = measured.private_bytes
    assert after - before < 16 * 2**20
