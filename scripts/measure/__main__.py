"""`python -m scripts.measure`: the list of comparisons, one of them, or the targets."""

import ast
import resource
import sys
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from persia_cli.bench.machine import Neighbours, this_machine
from persia_cli.bench.result import Result
from persia_cli.commands.bench_views import noting, print_json, warn_of_others
from persia_cli.commands.screen import err, labelled, out, pairs, report_failure, say
from persia_cli.errors import PersiaError, UserError, count
from persia_cli.observe.machine import cpu_seconds
from scripts.measure import Given, report, targets

COMPARISONS = Path(__file__).with_name("comparisons")
LEAST_S = 0.2
"""Seconds within which results belong to the same timing; the clock of other processes' time is no finer."""


def main(arguments: Sequence[str]) -> int:
    """Run a comparison, list all, or judge files; return the exit code."""
    first, *others = arguments or ["--help"]
    try:
        if first in ("-h", "--help"):
            say(out(), "python -m scripts.measure NAME [--help]\n")
            pairs(out(), described() | {"targets": "The targets, or those of files that `--json` has printed."})
            return 0
        return targets.main(others) if first == "targets" else _run(first, others)
    except PersiaError as error:
        return report_failure(error, debug=False)


def described() -> dict[str, str]:
    """Return the first line of each comparison's docstring, by name."""
    files = sorted(file for file in COMPARISONS.glob("*.py") if file.stem != "__init__")
    texts = {file.stem: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "" for file in files}
    return {name: text.partition("\n")[0] for name, text in texts.items()}


def _run(name: str, arguments: Sequence[str]) -> int:
    if name not in described():
        raise UserError(f"there is no comparison {name!r}; there are {', '.join(described())}, and targets")
    comparison = import_module(f"scripts.measure.comparisons.{name}")
    parser = ArgumentParser(
        f"python -m scripts.measure {name}", description=comparison.__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="alternating turns of each side; %(default)s")
    parser.add_argument("--quick", action="store_true", help="one round and small sizes, to see if it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    if hasattr(comparison, "options"):
        comparison.options(parser)
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        raise UserError(f"--rounds={given.rounds}: there must be at least one")
    if given.quick:
        given.rounds = 1
    warnings.filterwarnings("ignore", module="torch|fbgemm_gpu")
    return _report(name, given, _with_conditions(comparison.measure(given, noting(given.json)), given))


def _with_conditions(measured: Iterator[Result], given: Given) -> Iterator[Result]:
    """Complete results with the rounds, and the cores that others used, where the comparison itself did not count."""
    neighbours, busy = Neighbours(_cpu_seconds), 0.0
    for result in measured:
        if neighbours.seconds() > LEAST_S:
            neighbours, busy = Neighbours(_cpu_seconds), round(neighbours.cores(), 2)
        if not result.busy_cores:
            result = replace(result, sides=[replace(side, busy_cores=busy) for side in result.sides])
        yield replace(result, rounds=result.rounds or given.rounds)


def _cpu_seconds() -> float:
    """Return the CPU time of this process, and of those that it has started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return cpu_seconds() + ended.ru_utime + ended.ru_stime


def _report(name: str, given: Given, measured: Iterator[Result]) -> int:
    """Print results, also those that came before an error, and return the exit code."""
    results: list[Result] = []
    try:
        for result in measured:
            results.append(result)
            if not given.json:
                say(err(), report.line(result))
    finally:
        if given.json:
            print_json(name, results, given.quick)
        elif results:
            report.show_machine(this_machine())
            rounds = count(max(result.rounds for result in results), "round")
            labelled(out(), "measured", f"medians of {rounds}; the sides alternate")
            report.show(results, given.markdown)
            warn_of_others(results)
    if given.quick:
        say(err(), "a quick run: its numbers have no meaning")
        return 0
    return 0 if given.json else targets.show(targets.judge(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
