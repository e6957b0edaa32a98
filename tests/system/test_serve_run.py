"""`persia serve RUN` exports the run and serves it, and leaves nothing of the export, whatever ends it."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import JobResult
from tests.conftest import poll_for
from tests.system.test_serve import READY_S

PERSIA = Path(sys.executable).parent / "persia"

pytestmark = pytest.mark.slow


@contextmanager
def begun(run: Path, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`persia serve RUN`, whose temporary files are in `folder/tmp` and whose output in `folder/log`."""
    (folder / "tmp").mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [PERSIA, "serve", run, "--port", "0", "--workers", "1"], stderr=log,
            env=os.environ | {"TMPDIR": str(folder / "tmp")},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "tmp").glob("persia*"))


def test_a_run_is_served(undisturbed: JobResult, tmp_path: Path) -> None:
    with begun(undisturbed.run_dir, tmp_path) as process:
        log = tmp_path / "log"
        poll_for(lambda: process.poll() is not None or "open to" in log.read_text(), READY_S, "the server is ready")
        [address] = re.findall(r"at (http://127\.0\.0\.1:\d+)", log.read_text())
        name = undisturbed.run_dir.name
        with urllib.request.urlopen(f"{address}/v2/models/{name}", timeout=20) as answer:
            inputs = json.load(answer)["inputs"]
        row = {each["name"]: 1 for each in inputs}
        body = json.dumps({"instances": [row]}).encode()
        with urllib.request.urlopen(f"{address}/v1/models/{name}:predict", body, timeout=20) as answer:
            [found] = json.load(answer)["predictions"]
        assert 0.0 < found < 1.0
        assert len([each for each in left(tmp_path) if each.startswith("persia-export-")]) == 1
        process.terminate()
        assert process.wait(30) == 0
    assert left(tmp_path) == []


def test_nothing_is_left_of_an_export_that_is_ended_twice(undisturbed: JobResult, tmp_path: Path) -> None:
    number = signal.SIGINT
    with begun(undisturbed.run_dir, tmp_path) as process:
        poll_for(lambda: any((tmp_path / "tmp").glob("persia-export-*/*.part")), READY_S, "the export has begun")
        process.send_signal(number)
        process.send_signal(number)
        assert process.wait(30) == 130
    assert left(tmp_path) == []
    assert "Traceback" not in (tmp_path / "log").read_text()


def children(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_what_a_killed_command_leaves_goes_at_the_next_start(undisturbed: JobResult, tmp_path: Path) -> None:
    with begun(undisturbed.run_dir, tmp_path) as process:
        poll_for(lambda: any((tmp_path / "tmp").glob("persia-export-*/*.part")), READY_S, "the export has begun")
        exporting = children(process)
        process.kill()
        process.wait(10)
        poll_for(lambda: not any(each.is_running() for each in exporting), 10.0, "the export ends with the command")
    old = left(tmp_path)
    assert len(old) == 1
    (tmp_path / "tmp").rename(tmp_path / "kept")
    with begun(undisturbed.run_dir, tmp_path) as process:
        (tmp_path / "kept" / old[0]).rename(tmp_path / "tmp" / old[0])
        poll_for(lambda: len(left(tmp_path)) and old[0] not in left(tmp_path), READY_S, "the next one removes it")
        process.terminate()
        assert process.wait(30) == 143
    assert left(tmp_path) == []
