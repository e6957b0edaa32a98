"""The output of `persia bench kernels`: a table on a terminal, else a line for each result, or JSON."""

import json
from dataclasses import asdict
from typing import Self

from rich.text import Text

from persia_cli.bench.machine import BUSY, Machine
from persia_cli.bench.result import Result
from persia_cli.commands.bench_notes import warn_of_others
from persia_cli.commands.screen import err, out, paragraph, propose, say, size
from persia_cli.commands.screen_tables import columns, print_whole

MARKS = {True: ("met", "green"), False: ("missed", "bold red"), None: ("", "")}
NEXT = "persia bench throughput conf=criteo", "persia bench kernels"


class ResultPrinter:
    """Shows progress on stderr during the measurements, and the results on stdout."""

    def __init__(self, machine: Machine, cases: int, as_json: bool) -> None:
        self._machine, self._cases, self._as_json = machine, cases, as_json
        self._results: list[Result] = []
        self._begun = 0
        self._status = err().status("starting") if err().is_terminal else None

    def __enter__(self) -> Self:
        if not self._as_json:
            say(err(), describe(self._machine))
            say(err(), "where torch only reads or updates a table, its memory is in huge pages, as ours is")
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, case: str) -> None:
        """Print the name of the case that is measured next."""
        self._begun += 1
        text = f"measuring {case}, {self._begun} of {self._cases} …"
        if self._status is not None:
            self._status.update(text)
        elif not self._as_json:
            say(err(), text)

    def add(self, result: Result) -> None:
        """Add a result; where stdout is not a terminal it is printed at once."""
        self._results.append(result)
        if not self._as_json and not out().is_terminal:
            say(out(), line(result))

    def close(self, judged: bool) -> None:
        """Print the table or the JSON object, the number of targets met, and the next command."""
        met, targets = (sum(result.passed is each for result in self._results) for each in (True, False))
        targets += met
        if self._as_json:
            head = {"machine": asdict(self._machine), "met": met, "targets": targets}
            say(out(), json.dumps(head | {"results": [asdict(result) for result in self._results]}))
            return
        if out().is_terminal:
            self._print_table()
        busy = max((result.busy_cores for result in self._results), default=0.0)
        if judged:
            warn_of_others(busy)
        say(
            err(),
            f"{met} of {targets} targets met" if judged else "a quick run: no figure was compared with its target",
        )
        propose(err(), NEXT[0 if judged else 1])

    def _print_table(self) -> None:
        table = columns("what", "ours", "baseline", "unit", "ratio", "target", "", "against")
        for each in self._results:
            table.add_row(
                Text(each.name), f"{each.ours:.4g}", f"{each.theirs:.4g}", each.unit, f"{each.ratio:.2f}",
                target_text(each), Text(*MARKS[each.passed]), each.baseline,
            )  # fmt: skip
        for number in (3, 7):
            table.columns[number].justify = "left"
        print_whole(out(), table)
        for note in dict.fromkeys(f"{each.name}: {each.note}" for each in self._results if each.note):
            paragraph(out(), note, style="dim")


def describe(machine: Machine) -> str:
    """Return one line about the machine."""
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    return (
        f"{machine.processor}; {size(machine.memory)}, huge pages: {machine.huge_pages}; {libraries}; "
        "one thread, medians of alternating runs"
    )


def target_text(result: Result) -> str:
    """Return a result's target as text, empty if it has none."""
    if result.target is None:
        return ""
    return f"{'≥' if result.target_is == 'at least' else '≤'} {result.target:g}"


def line(result: Result) -> str:
    """Return a result as one line."""
    mark = MARKS[result.passed][0]
    parts = [
        f"{result.name}: {result.ours:.4g} {result.unit}",
        f"{result.ratio:.2f} x {result.baseline} ({result.theirs:.4g})",
        " ".join(part for part in ("target", target_text(result), mark) if part) if result.target is not None else "",
        f"others used {result.busy_cores:.1f} cores" if result.busy_cores > BUSY else "",
        result.note,
    ]
    return "; ".join(part for part in parts if part)
