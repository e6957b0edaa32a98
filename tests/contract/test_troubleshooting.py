"""The errors that docs/guide/troubleshooting.md shows are those that its commands end with, word for word.

    <!-- fails -->                each `$ command` of a `console` ends with the error below it, or well if there is none
    <!-- fails slow -->           the same, where slow tests run
    <!-- fails without a GPU -->  the same, where torch sees none

In an error … stands for anything.
"""

import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from persia_cli.control.restarts import killed_by
from persia_cli.main import main
from scripts.readme import Block, blocks
from tests.contract.test_docs import GUIDE, write_files

PAGE = GUIDE / "troubleshooting.md"
ERRORS = [block for block in blocks(PAGE.read_text()) if block.mark.startswith("fails")]


def name(block: Block) -> str:
    """Return the heading that a block stands below."""
    return re.findall(r"^### (.+)", PAGE.read_text().partition(block.code)[0], re.M)[-1].replace(" ", "-")


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command of a block, and the error below it."""
    for part in re.split(r"^\$ ", block.code.replace("\\\n", ""), flags=re.M)[1:]:
        command, _, error = part.partition("\n")
        yield command, error.strip()


@pytest.mark.parametrize(
    "block",
    [pytest.param(b, id=name(b), marks=[pytest.mark.slow] if b.mark == "fails slow" else []) for b in ERRORS],
)
def test_the_commands_end_with_the_errors_below_them(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if block.mark == "fails without a GPU" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    write_files(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "cache"))
    for command, error in commands(block):
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr().err
        assert bool(ended.value.code) == bool(error), said
        assert re.search(".+".join(map(re.escape, error.split("…"))), said), said


def test_there_are_twenty_errors_and_more() -> None:
    assert len([error for block in ERRORS for _, error in commands(block) if error]) >= 20


def test_the_error_without_a_command_is_that_of_the_code() -> None:
    assert f"embedding-server-0 {killed_by(signal.SIGKILL)}" in PAGE.read_text()
