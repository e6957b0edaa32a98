"""Results of `python -m scripts.bench` on the screen."""

from collections.abc import Iterable, Sequence
from typing import Self

from rich.text import Text

from persia_cli.bench.machine import BUSY, Machine
from persia_cli.bench.result import Result
from persia_cli.commands.bench_views import print_json, warn_of_others
from persia_cli.commands.screen import err, labelled, out, paragraph, say, size
from persia_cli.commands.tables import columns, print_table


def show_saving(result: Result) -> None:
    """Print the speed of training during saves and between them."""
    labelled(out(), "saves", f"{result.rounds}, each during training for some of {result.steps} steps; {result.note}")
    table = columns("training", "samples/s", "least", "most", "is")
    for side, name in zip(result.sides, ("during saves", "between saves"), strict=True):
        ratio = "".join(f"{each:.3f} x" for each in side.ratios.values())
        table.add_row(name, f"{side.median:,.0f}", f"{side.least:,.0f}", f"{side.most:,.0f}", ratio)
    print_table(out(), table)


class RatioPrinter:
    """Shows progress on stderr while parts of the store are measured, and the results on stdout."""

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
            for line in lines(result):
                say(out(), line)

    def close(self, quick: bool) -> None:
        """Print the table or the JSON object, and a note if the numbers of a quick run have no meaning."""
        if self._as_json:
            print_json("kernels", self._results, quick)
            return
        if out().is_terminal:
            self._print_table()
        if quick:
            say(err(), "a quick run: its numbers have no meaning")
        else:
            warn_of_others(self._results)

    def _print_table(self) -> None:
        table = columns("what", "ours", "baseline", "unit", "ratio", "against")
        for each in self._results:
            for name, ours, theirs, ratio in _pairs(each):
                table.add_row(Text(each.name), ours, theirs, each.unit, ratio, name)
        for number in (3, 5):
            table.columns[number].justify = "left"
        print_table(out(), table)
        for note in dict.fromkeys(f"{each.name}: {each.note}" for each in self._results if each.note):
            paragraph(out(), note, style="dim")


def _pairs(result: Result) -> Sequence[tuple[str, str, str, str]]:
    """Return each baseline's name, our number, its number, and the ratio; without a baseline our number alone."""
    ours, *others = result.sides
    pairs = [
        (each.name, f"{ours.median:.4g}", f"{each.median:.4g}", f"{ours.ratios[each.name]:.2f}") for each in others
    ]
    return pairs or [("", f"{ours.median:.4g}", "", "")]


def lines(result: Result) -> Iterable[str]:
    """Yield a line for each baseline of a result."""
    for name, ours, theirs, ratio in _pairs(result):
        parts = [
            f"{result.name}: {ours} {result.unit}",
            f"{ratio} x {name} ({theirs})" if name else "",
            f"others used {result.busy_cores:.1f} cores" if result.busy_cores > BUSY else "",
            result.note,
        ]
        yield "; ".join(part for part in parts if part)


def describe(machine: Machine) -> str:
    """Return one line about the machine."""
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    return (
        f"{machine.processor}; {size(machine.memory)}, huge pages: {machine.huge_pages}; {libraries}; "
        "one thread, medians of alternating runs"
    )
