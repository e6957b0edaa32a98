"""The Python API on real jobs."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persia_cli as persia
from persia_cli.api.child import stop_all
from persia_cli.store.checkpoints.manifest import finished_steps
from tests.conftest import poll_for

ROWS = 600
HERE = ("cluster=embedded", "model.hidden=[8]")
LONG = (*HERE, "train.epochs=1000", "train.log_every_steps=20", "train.stop_early=null", "checkpoint.best_by=null")
"""A job that only ends if it is stopped."""
SHOP: dict[str, Any] = {
    "name": "shop",
    "dataset": {
        "labels": ["bought"],
        "dense": ["price"],
        "sparse": ["user", "item", {"name": "last_items", "table": "item", "pooling": "mean"}],
        "split": {"kind": "every", "n": 5},
    },
    "model": {"dim": 4, "hidden": [8]},
    "embedding": {"memory": "16MiB", "tables": {"user": {"hash_stack": {"size": 50, "rounds": 2}}}},
    "train": {"batch_size": 32, "epochs": 2},
    "cluster": "embedded",
}


def shop_table() -> pa.Table:
    rng = np.random.default_rng(0)
    items = [f"i{number}" for number in rng.integers(0, 40, ROWS)]
    columns = {
        "user": rng.integers(0, 100, ROWS),
        "item": items,
        "last_items": [items[max(0, row - 2) : row] for row in range(ROWS)],
        "price": rng.uniform(1.0, 9.0, ROWS),
    }
    return pa.table({**columns, "bought": [int(item) % 3 == 0 for item in (each[1:] for each in items)]})


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "persia_cli", *words], capture_output=True, text=True, timeout=120)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C as in a foreground program: shells start those in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    stop_all()  # what a test that fails has left


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that was trained on a DataFrame with a configuration of Python, in which NumPy computed a number."""
    conf = SHOP | {"optimizer": {"dense": {"lr": np.float64(0.01)}}, "train": {"batch_size": np.int64(32), "epochs": 2}}
    return persia.train(conf, data=shop_table().to_pandas(), folder=tmp_path_factory.mktemp("shop") / "run")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_model_of_a_data_frame_scores_as_the_command_line_does(shop: Any, folder: Path) -> None:
    assert shop.state == "done"
    assert (shop.folder / "given" / "data.parquet").is_file()
    pq.write_table(shop_table(), "day.parquet")
    assert command("predict", str(shop.folder), "day.parquet", "-o", "scores.parquet").returncode == 0
    expected = pq.read_table("scores.parquet")
    assert shop.predict("day.parquet").equals(expected)
    assert shop.predict(shop_table().to_pandas()).equals(expected)
    assert shop.predict("day.parquet", keep="item")["item"].equals(shop_table()["item"])
    auc = shop.evaluate(shop_table()).auc
    assert f"auc={auc} " in command("eval", str(shop.folder), "--data", "day.parquet").stdout
    lines = shop.metrics
    assert isinstance(lines, pd.DataFrame)
    assert shop.evaluate().loss == lines[lines.split == "eval"].loss.iloc[-1]
    assert [path.name for path in shop.folder.glob("python-*")] == []


def test_rows_are_those_of_the_export_by_ids_as_the_data_has_them(shop: Any, folder: Path) -> None:
    assert dict(zip(shop.tables.name, shop.tables.rows, strict=True))["item"] == 40
    assert command("checkpoint", "export", str(shop.folder), "--table", "item", "-o", "item.parquet").returncode == 0
    expected = pq.read_table("item.parquet")
    items = [f"i{number}" for number in range(40)]
    found = shop.rows("item", [*items, "never seen"])
    assert found.shape == (41, 4)
    assert not found[-1].any()
    known = np.array(expected["vector"].to_pylist(), np.float32)
    assert sorted(map(tuple, found[:-1])) == sorted(map(tuple, known))
    assert shop.rows("user", [7]).shape == (1, 4)
    with pytest.raises(persia.PersiaError, match="no_table"):
        shop.rows("no_table", [1])
    with pytest.raises(persia.PersiaError, match="list"):
        shop.rows("item", "i7")
    assert (shop.export(folder / "model", rows="int8") / "model.json").is_file()
    assert shop.report().is_file()


def test_functions_see_the_job_and_stop_it_and_a_resume_goes_on(folder: Path) -> None:
    steps: list[int] = []
    saved: list[str] = []

    def watch(line: Any) -> None:
        steps.append(line.step)
        if line.step >= 60 and line.auc > 0.5:
            line.stop()

    run = persia.train("base", *LONG, on_metrics=watch, on_checkpoint=lambda line: saved.append(line.path))
    assert run.state == "stopped"
    assert (steps[:3], saved[-1]) == ([20, 40, 60], str(run.folder / "checkpoints" / f"step-{steps[-1]}"))
    until = steps[-1]
    evaluated: list[Any] = []
    again = persia.open(run.folder).resume(
        f"train.steps={until + 30}",
        on_metrics=lambda line: steps.append(line.step),
        on_evaluation=evaluated.append,
        wait=False,
    )
    assert again.state == "running"
    assert again.wait().state == "done"
    assert [step for step in steps if steps.count(step) > 1] == []
    assert (evaluated[-1].split, evaluated[-1].step) == ("eval", until + 30)
    assert persia.open(run.folder).wait().state == "done"


def test_an_exception_in_a_function_stops_the_job_after_it_is_saved(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        persia.train("base", *LONG, folder="run", on_metrics=lambda line: line.step / 0)
    assert persia.open("run").state == "stopped"
    assert finished_steps(Path("run/checkpoints"))


def test_errors_are_those_of_the_command_line(folder: Path) -> None:
    words = ("train.epochsx=1", "model=no_such_model")
    with pytest.raises(persia.PersiaError) as raised:
        persia.train("base", *words)
    ended = command("train", "conf=base", *words)
    assert raised.value.exit_code == ended.returncode == 2
    assert [f"error: {line}" for line in str(raised.value).splitlines()] == ended.stderr.splitlines()
    with pytest.raises(persia.PersiaError) as raised:
        persia.train(SHOP, data=shop_table().drop_columns("item"), folder="refused")
    assert raised.value.exit_code == 2
    with pytest.raises(persia.PersiaError, match="function") as raised:
        persia.train(SHOP, data=print)
    with pytest.raises(persia.PersiaError):
        persia.open("refused")
    with pytest.raises(persia.PersiaError, match="function"):
        persia.train(SHOP | {"name": print}, data=shop_table(), folder="refused")
    with pytest.raises(persia.PersiaError, match="dry_run"):
        persia.sweep("base", "seed=1,2", dry_run=True)
    assert [path.name for path in folder.rglob("*") if path.is_file() or path.name == "refused"] == []
    assert list(folder.glob("runs/*")) == []


def test_the_death_of_the_job_is_an_error(folder: Path) -> None:
    run = persia.train("base", *LONG, wait=False)
    poll_for(lambda: (run.folder / "metrics.jsonl").exists(), 60.0, "the job begins")
    [child] = [each for each in psutil.Process().children() if str(run.folder) in each.cmdline()]
    child.kill()
    with pytest.raises(persia.PersiaError, match="SIGKILL") as raised:
        run.wait()
    assert (raised.value.exit_code, run.state) == (1, "dead")


def test_a_job_of_another_process_goes_on_until_it_is_stopped(folder: Path) -> None:
    words = [sys.executable, "-m", "persia_cli", "train", *LONG, "--run-dir", "run"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process, ExitStack() as stack:
        stack.callback(process.kill)
        poll_for(trains, 90.0, "the job trains")
        run = persia.open("run")
        interrupt = threading.Timer(5.0, lambda: os.kill(os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            run.wait()
        interrupt.join()
        assert (run.state, process.poll()) == ("running", None)
        run.stop()
        assert (run.state, process.wait(30)) == ("stopped", 75)
    assert finished_steps(Path("run/checkpoints"))


def test_a_sweep_returns_its_points(folder: Path) -> None:
    found = persia.sweep(
        "base", *HERE, "train.epochs=1", "train.batch_size=512,1024", folder="sweep", metric="log_loss"
    )
    assert found.folder == Path("sweep")
    assert list(found.points["train.batch_size"]) == [512, 1024]
    assert (len(found.settings), list(found.points["state"])) == (2, ["done", "done"])
    assert [run.state for run in found.runs] == ["done", "done"]
    assert found.runs[0].metrics.loss.iloc[-1] == found.points.loss[0]
    assert persia.sweep(resume="sweep", metric="auc").points.equals(found.points)


SCRIPT = """
    import persia_cli as persia
    run = persia.train("base", {words}, folder="run", wait={wait})
    print(run.state, flush=True)
"""


@pytest.fixture
def script(folder: Path) -> Iterator[Any]:
    """A script without a guard for its main module, whose job has several processes."""
    started = []

    def start(wait: bool) -> subprocess.Popen[str]:
        words = (*LONG, "cluster=local")
        Path("train.py").write_text(textwrap.dedent(SCRIPT.format(words=str(words)[1:-1], wait=wait)))
        command = [sys.executable, "train.py"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def trains() -> bool:
    return Path("run/metrics.jsonl").exists() and bool(Path("run/metrics.jsonl").read_text())


def of_the_job() -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        try:
            if Path("run").resolve() == Path(each.cwd()) / "run" and "persia_cli" in " ".join(each.cmdline()):
                found.append(each)
        except psutil.Error:
            continue
    return found


def test_ctrl_c_in_a_script_saves_and_stops(script: Any) -> None:
    process = script(wait=True)
    poll_for(trains, 90.0, "the job trains")
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert printed.splitlines()[-1] == "KeyboardInterrupt"
    assert persia.open("run").state == "stopped"
    assert finished_steps(Path("run/checkpoints"))
    assert of_the_job() == []


def test_the_job_ends_with_a_parent_that_is_killed(script: Any) -> None:
    process = script(wait=True)
    poll_for(trains, 90.0, "the job trains")
    assert len(of_the_job()) > 3
    os.kill(process.pid, signal.SIGKILL)
    poll_for(lambda: not of_the_job(), 20.0, "the job ends")


def test_the_job_of_a_script_that_ends_is_saved(script: Any) -> None:
    process = script(wait=False)
    begun = time.monotonic()
    assert process.communicate(timeout=60)[0] == "running\n"
    assert process.returncode == 0
    assert time.monotonic() - begun < 60.0
    assert of_the_job() == []
