"""How ratios are shown."""

import io
import json

import pytest
from rich.console import Console

from persia_cli.bench.machine import Machine
from persia_cli.bench.result import Result
from persia_cli.commands import ratios
from persia_cli.commands.ratios import ResultPrinter, line, target_text

MACHINE = Machine("a processor", 2, 2**34, "madvise", "3.11.7", {"numpy": "2.4.6"}, ("avx2", "avx512f"))
MET = Result("look-up", "torch", 20.0, 10.0, "Mrows/s", 2.0, 1.5, passed=True, note="a note")
MISSED = Result("memory", "limit", 170.0, 160.0, "bytes", 1.0625, 1.0, "at most", passed=False, busy_cores=0.9)
FREE = Result("other", "torch", 1.0, 2.0, "Mrows/s", 0.5, None)


def test_lines() -> None:
    assert line(MET) == "look-up: 20 Mrows/s; 2.00 x torch (10); target ≥ 1.5 met; a note"
    assert line(MISSED) == "memory: 170 bytes; 1.06 x limit (160); target ≤ 1 missed; others used 0.9 cores"
    assert line(FREE) == "other: 1 Mrows/s; 0.50 x torch (2)"
    assert target_text(FREE) == ""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a wide terminal shows on stdout."""
    shown = io.StringIO()
    monkeypatch.setattr(ratios, "out", lambda: console)
    console = Console(file=shown, force_terminal=True, color_system=None, width=150)
    return shown


def test_a_table_on_a_terminal(terminal: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    with ResultPrinter(MACHINE, 1, as_json=False) as report:
        report.begin("look-up")
        for result in (MET, MISSED, FREE):
            report.add(result)
    report.close(judged=True)
    rows = [each.split() for each in terminal.getvalue().splitlines()]
    assert ["look-up", "20", "10", "Mrows/s", "2.00", "≥", "1.5", "met", "torch"] in rows
    assert ["memory", "170", "160", "bytes", "1.06", "≤", "1", "missed", "limit"] in rows
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("a processor, 2 cores, avx2 avx512f; 16.0 GiB, huge pages: madvise; numpy 2.4.6")
    assert told[-3:] == [
        "other programs used up to 0.9 cores meanwhile: measure again on an idle machine",
        "1 of 2 targets met",
        "next      persia bench throughput conf=criteo",
    ]


def test_json_counts_bars(capsys: pytest.CaptureFixture[str]) -> None:
    with ResultPrinter(MACHINE, 1, as_json=True) as report:
        report.begin("look-up")
        report.add(MET)
        report.add(FREE)
    report.close(judged=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["met"], told["targets"], len(told["results"])) == (1, 1, 2)
    assert told["machine"]["cpu"] == "a processor"
