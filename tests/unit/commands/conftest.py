"""The command line, run in this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from persia_cli.commands.options import OUTPUT
from persia_cli.main import main

TINY = """\
# A few made-up samples.
kind: generated
generator: {train_rows: 600, eval_rows: 200, dense: 2, cardinalities: [10, 20]}
"""


@dataclass(frozen=True)
class Ended:
    """The end of a command: its exit code and output."""

    code: int
    out: str
    err: str


Persia = Callable[..., Ended]


@pytest.fixture
def persia(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Persia:
    """Run `persia` with arguments, in an empty folder that has a data set `tiny` in its conf/."""
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "tiny.yaml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERSIA_CONF_DIR", str(tmp_path / "conf"))

    for setting in ("as_json", "verbose"):
        monkeypatch.setattr(OUTPUT, setting, False)  # restored after the test

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["persia", *words])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run
