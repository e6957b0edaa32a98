"""Display of ratios."""

import io
import json

import pytest
from rich.console import Console

from persia_cli.bench.machine import Machine
from persia_cli.bench.result import Result, Side
from scripts.bench import views
from scripts.bench.alternate import single
from scripts.bench.views import RatioPrinter, lines

MACHINE = Machine("a processor", 2, 2**34, "madvise", "3.11.7", {"numpy": "2.4.6"}, ("avx2", "avx512f"))
SPEED = single("look-up", "Mrows/s", {"persia": 20.0, "torch": 10.0, "limit": 40.0}, "a note")
BUSY = Result("", "memory", "bytes", [Side("persia", 170.0, 0, 0, {"values": 1.0625}, busy_cores=0.9),
                                      Side("values", 160.0, 0, 0)])  # fmt: skip
ALONE = single("start", "s", {"persia": 1.5})


def test_lines() -> None:
    assert list(lines(SPEED)) == [
        "look-up: 20 Mrows/s; 2.00 x torch (10); a note",
        "look-up: 20 Mrows/s; 0.50 x limit (40); a note",
    ]
    assert list(lines(BUSY)) == ["memory: 170 bytes; 1.06 x values (160); others used 0.9 cores"]
    assert list(lines(ALONE)) == ["start: 1.5 s"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return the output of a wide terminal."""
    shown = io.StringIO()
    monkeypatch.setattr(views, "out", lambda: console)
    console = Console(file=shown, force_terminal=True, color_system=None, width=150)
    return shown


def test_a_table_on_a_terminal(terminal: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    with RatioPrinter(MACHINE, 1, as_json=False) as report:
        report.begin("look-up")
        for result in (SPEED, BUSY, ALONE):
            report.add(result)
    report.close(quick=False)
    rows = [each.split() for each in terminal.getvalue().splitlines()]
    assert ["look-up", "20", "10", "Mrows/s", "2.00", "torch"] in rows
    assert ["look-up", "20", "40", "Mrows/s", "0.50", "limit"] in rows
    assert ["memory", "170", "160", "bytes", "1.06", "values"] in rows
    assert ["start", "1.5", "s"] in rows
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("a processor, 2 cores, avx2 avx512f; 16.0 GiB, huge pages: madvise; numpy 2.4.6")
    assert told[-1] == "other programs used up to 0.9 cores meanwhile: measure again on an idle machine"


def test_json_has_every_side_and_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    with RatioPrinter(MACHINE, 1, as_json=True) as report:
        report.begin("look-up")
        report.add(SPEED)
        report.add(ALONE)
    report.close(quick=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["benchmark"], told["quick"], len(told["results"])) == ("kernels", True, 2)
    assert told["machine"]["cores"] >= 1
    ours, theirs, _ = told["results"][0]["sides"]
    assert (ours["median"], ours["ratios"], theirs["name"]) == (20.0, {"torch": 2.0, "limit": 0.5}, "torch")
