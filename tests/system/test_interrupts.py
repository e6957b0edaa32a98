"""Ctrl-C at any moment of a command, from its first import on: exit code 130 and no traceback; so with SIGTERM: 75."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperGroup

from persia_cli import main
from persia_cli.__main__ import OF_JOBS
from persia_cli.engines.driver_process import LOG, exit_code, start_driver
from tests.conftest import poll_for

COMMANDS = {
    "help": ["--help"],
    "dry run": ["train", "--dry-run"],
    "report": ["report", "nowhere"],
    "role": ["launch-role", "embedding-server", "--coordinator", "ipc:///tmp/nobody-listens-here", "--index", "0",
             "--token-file", "nobody-writes-it"],
}  # fmt: skip


def interrupted(words: list[str], after_s: float, folder: Path, again_s: float | None = None) -> tuple[int, str]:
    """Start a command and press Ctrl-C after so long, perhaps twice; return its exit code and what it printed.

    The time counts from when Python has read the first module of the program: before, no code can take the signal.
    """
    started = folder / "started"
    started.unlink(missing_ok=True)
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"import persia_cli.__main__ as command; open({str(started)!r}, 'w').close(); command.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    try:
        poll_for(started.exists, 30.0, "Python")
        for pause in (after_s, again_s):
            if pause is not None and not _ends_within(process, pause):
                os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=30.0)
    finally:
        process.kill()
        process.wait()
    return process.returncode, output


def _ends_within(process: subprocess.Popen[str], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


@pytest.mark.parametrize(
    "after_s", [0.05, pytest.param(0.3, marks=pytest.mark.slow), pytest.param(1.0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_at_any_moment_ends_quietly(name: str, after_s: float, tmp_path: Path) -> None:
    code, output = interrupted(COMMANDS[name], after_s, tmp_path)
    assert "Traceback" not in output
    assert "KeyboardInterrupt" not in output
    # A command that was over before the signal came has its own exit code.
    assert code == 130 or (code == 0 and name != "role" and output) or "error: nowhere does not contain a run" in output


@pytest.mark.slow
@pytest.mark.parametrize("again_s", [0.0, 0.2])
@pytest.mark.parametrize("after_s", [0.1, 1.0, 3.0])
def test_a_second_interrupt_is_as_quiet(after_s: float, again_s: float, tmp_path: Path) -> None:
    words = ["train", "cluster=local", "dataset.generator.train_rows=100000000", "conf=synthetic"]
    code, output = interrupted(words, after_s, tmp_path, again_s)
    assert "Traceback" not in output
    assert code == 130


def has(process: "subprocess.Popen[str]", mask: str, number: signal.Signals) -> bool:
    """Return True if a signal is in a mask of a process: SigCgt, those that it handles, or SigBlk (Linux, proc(5))."""
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    found = next(line for line in status if line.startswith(f"{mask}:"))
    return bool(int(found.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("after_s", [0.0, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.4, 1.5))])
@pytest.mark.parametrize("command", ["train", pytest.param("launch-role", marks=pytest.mark.slow)])
def test_a_signal_before_the_job_begins_ends_it_to_be_started_again(
    command: str, after_s: float, number: signal.Signals, tmp_path: Path
) -> None:
    job = ["train", "conf=synthetic", "dataset.generator.train_rows=1_000_000_000", "--run-dir", str(tmp_path / "run")]
    words = job if command == "train" else COMMANDS["role"]
    process = subprocess.Popen(
        [sys.executable, "-m", "persia_cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    try:
        # Python itself takes a few hundredths of a second to start, in which no code can take the signal.
        poll_for(lambda: has(process, "SigCgt", number), 30.0, "a handler")
        assert not _ends_within(process, after_s) if after_s else True
        process.send_signal(number)
        output, _ = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 75, output
    assert "Traceback" not in output
    if after_s == 0.0:
        assert output.startswith(f"{number.name}: ")
        assert list(tmp_path.iterdir()) == []


def test_a_signal_at_any_moment_of_a_driver_is_its_recorded_end(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        process = start_driver(tmp_path / "run", [], "")
        process.send_signal(number)
        assert process.wait(60.0) == exit_code(tmp_path / "run") == 75
        said = (tmp_path / "run/driver" / LOG).read_text()
        assert said == f"{number.name}: stopped before the job began; run the same command again\n"


def test_the_commands_that_end_with_that_code_exist() -> None:
    group = cast(TyperGroup, typer.main.get_command(main.app))
    assert set(OF_JOBS) <= group.commands.keys()


def test_a_signal_after_the_end_of_a_command_changes_nothing(tmp_path: Path) -> None:
    """All is done and printed; a scheduler must not take it for a job that was killed, or that is to go on."""
    code = (
        "import atexit, os, signal, persia_cli.__main__ as command\n"
        "for number in (signal.SIGTERM, signal.SIGUSR1):\n"
        "    atexit.register(os.kill, os.getpid(), number)\n"
        "command.main()"
    )
    words = [sys.executable, "-c", code, "train", "--help"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
