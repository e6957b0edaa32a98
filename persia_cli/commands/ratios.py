"""How the results of `persia bench kernels` are shown: a table on a terminal, a line each elsewhere, or JSON."""

import json
from dataclasses import asdict
from typing import Self

from rich.text import Text

from persia_cli.bench.machine import BUSY, Machine
from persia_cli.bench.result import Result
from persia_cli.commands.screen import columns, err, out, say, size

MARKS = {True: ("met", "green"), False: ("missed", "bold red"), None: ("", "")}
NEXT = "persia bench throughput conf=criteo", "persia bench kernels"


class Report:
    """Shows progress on stderr while results come in, and the results on stdout."""

    def __init__(self, machine: Machine, cases: int, as_json: bool) -> None:
        self._machine, self._cases, self._as_json = machine, cases, as_json
        self._results: list[Result] = []
        self._begun = 0
        self._status = err().status("starting") if err().is_terminal else None

    def __enter__(self) -> Self:
        if not self._as_json:
            say(err(), describe(self._machine))
            say(err(), "where torch only reads or updates a table, its memory lies in huge pages, as ours does")
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, case: str) -> None:
        """Tell which case is measured now."""
        self._begun += 1
        text = f"measuring {case}, {self._begun} of {self._cases} …"
        if self._status is not None:
            self._status.update(text)
        elif not self._as_json:
            say(err(), text)

    def add(self, result: Result) -> None:
        """Take a result; where stdout is no terminal it is printed at once."""
        self._results.append(result)
        if not self._as_json and not out().is_terminal:
            say(out(), line(result))

    def close(self, judged: bool) -> None:
        """Print the table or the JSON object, how many bars were met, and what to do next."""
        met, bars = (sum(result.passed is each for result in self._results) for each in (True, False))
        bars += met
        if self._as_json:
            told = {"machine": asdict(self._machine), "met": met, "bars": bars}
            say(out(), json.dumps(told | {"results": [asdict(result) for result in self._results]}))
            return
        if out().is_terminal:
            self._print_table()
        busy = max((result.busy_cores for result in self._results), default=0.0)
        if judged and busy > BUSY:
            say(err(), f"others used up to {busy:.1f} cores meanwhile: measure again on a quiet machine", "yellow")
        say(err(), f"{met} of {bars} bars met" if judged else "a quick run: nothing was held against its bar")
        say(err(), f"next: {NEXT[0 if judged else 1]}")

    def _print_table(self) -> None:
        table = columns("what", "ours", "rival", "unit", "ratio", "bar", "", "against")
        for each in self._results:
            table.add_row(
                Text(each.name), f"{each.ours:.4g}", f"{each.theirs:.4g}", each.unit, f"{each.ratio:.2f}", bar(each),
                Text(*MARKS[each.passed]), each.rival,
            )  # fmt: skip
        for number in (3, 7):
            table.columns[number].justify = "left"
        table.columns[0].overflow = "fold"
        table.columns[0].no_wrap = False
        out().print(table)
        for note in dict.fromkeys(f"{each.name}: {each.note}" for each in self._results if each.note):
            say(out(), note, "dim")


def describe(machine: Machine) -> str:
    """Return a line about the machine."""
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    return (
        f"{machine.cpu}, {machine.cores} cores, {size(machine.memory)}, huge pages: {machine.huge_pages}; {libraries}; "
        "one thread, medians of alternating runs"
    )


def bar(result: Result) -> str:
    """Return the bar as text, empty without one."""
    if result.bar is None:
        return ""
    return f"{'≥' if result.bar_is == 'at least' else '≤'} {result.bar:g}"


def line(result: Result) -> str:
    """Return a result as one line."""
    mark = MARKS[result.passed][0]
    parts = [
        f"{result.name}: {result.ours:.4g} {result.unit}",
        f"{result.ratio:.2f} x {result.rival} ({result.theirs:.4g})",
        " ".join(part for part in ("bar", bar(result), mark) if part) if result.bar is not None else "",
        f"others used {result.busy_cores:.1f} cores" if result.busy_cores > BUSY else "",
        result.note,
    ]
    return "; ".join(part for part in parts if part)
