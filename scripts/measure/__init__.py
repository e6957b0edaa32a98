"""The one harness of all comparisons: `python -m scripts.measure NAME`; without a name it lists them.

A comparison is one file, `scripts/measure/comparisons/NAME.py`. Its docstring is its help, and the first line is in the
list. It has one function, and a second one if it adds options:

    def options(parser: ArgumentParser) -> None: ...
    def measure(given: Given, note: Note) -> Iterator[Result]: ...

`measure` yields a `Result` (`persia_cli/bench/result.py`) as soon as it has one: its sides, ours first, in a unit. What
is measured in two units, such as AUC and seconds, is two results. `given` has the options; all comparisons have
`--rounds` (7, or `parser.set_defaults(rounds=…)`), `--quick` (one round; make all else small too), `--json` and
`--markdown`. Call `note` with what is measured next. Raise `UserError` for what the user can correct, such as a missing
library. Import libraries that only one comparison needs inside its functions: `--help` works without.

The sides alternate, in an order that is reversed each round, so that a disturbance affects all of them:

| what is timed | call |
|---|---|
| functions of this process, by processor time | `timing.alternate`, then `timing.compared` |
| functions that wait, or that start processes | the same with `clock=perf_counter`, and `Turn(…, loops=1)` |
| jobs and trainers, by samples | `take_turns`, then `side_of` (`persia_cli/bench/rounds.py`) |
| values of each round that are no times, such as AUC by seed | `rounds.alternating`, then `timing.measured` |

The harness (`__main__.py`) does the rest. It describes the machine, measures how many cores other processes used, and
prints one table (`report.py`), on a terminal, in a file and as Markdown, or one JSON object. It holds the results
against the targets (`targets.py`), and its exit code is theirs: 0: all are met, or none is set; 1: one is missed;
2: it could not be measured.

A target is a line of `targets.py` under the command that prints it. A name of a result must have all that a target
depends on, as the targets are patterns of names.
"""

from argparse import Namespace as Given
from collections.abc import Callable

Note = Callable[[str], None]
"""Called with what is measured next."""

CRITEO = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of the 26 categorical columns of the Criteo challenge."""

__all__ = ["CRITEO", "Given", "Note"]
