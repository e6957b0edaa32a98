"""Commands whose output has no reader, or no space: jobs go on, and others end without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from persia_cli.engines.job import ROLES
from persia_cli.engines.output import LOG
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps
from tests.conftest import poll_for
from tests.support.small import STEPS, WORDS

PERSIA = [sys.executable, "-m", "persia_cli"]
FULL = Path("/dev/full")


@pytest.mark.parametrize("cluster", ["embedded", pytest.param("local", marks=pytest.mark.slow)])
def test_a_job_outlives_the_reader_of_its_output(cluster: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    reader, writer = os.pipe()
    words = ["train", *WORDS, f"cluster={cluster}", "--run-dir", str(run_dir)]
    with subprocess.Popen([*PERSIA, *words], stdin=subprocess.DEVNULL, stdout=writer, stderr=writer) as process:
        os.close(writer)
        poll_for(lambda: read_journal(run_dir / METRICS) or process.poll() is not None, 120.0, "steps trained")
        os.close(reader)
        assert process.wait(120.0) == 0
    assert finished_steps(run_dir / CHECKPOINTS)[-1] == STEPS
    kept = (run_dir / ROLES / LOG).read_text()
    assert "has ended (Broken pipe); this is the rest of it\n" in kept
    assert "\nnext      persia eval " in kept, "the results"


@pytest.mark.slow
def test_a_job_needs_no_space_for_its_output(tmp_path: Path) -> None:
    words = ["train", *WORDS, "cluster=embedded", "--run-dir", str(tmp_path / "run")]
    with FULL.open("wb") as full:
        ended = subprocess.run([*PERSIA, *words], stdin=subprocess.DEVNULL, stdout=full, stderr=full, timeout=120)
    assert ended.returncode == 0
    assert finished_steps(tmp_path / "run" / CHECKPOINTS)[-1] == STEPS


@pytest.mark.parametrize("words", [["config", "list"], ["--help"]])
def test_a_list_without_a_reader_ends_quietly(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([*PERSIA, *words], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_list_without_space_is_an_error() -> None:
    with FULL.open("wb") as full:
        ended = subprocess.run([*PERSIA, "config", "list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == "error: disk full: cannot write <stdout>; free space or choose another place\n"
