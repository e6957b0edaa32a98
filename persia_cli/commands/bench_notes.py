"""Notes that benchmarks print beside their figures."""

from collections.abc import Callable

from persia_cli.bench.machine import BUSY
from persia_cli.commands.screen import err, paragraph, say


def noting(as_json: bool) -> Callable[[str], None]:
    """Return a function that prints the current measurement; with JSON output it prints nothing."""

    def note(text: str) -> None:
        if not as_json:
            say(err(), f"{text} …")

    return note


def warn_of_others(cores: float) -> None:
    """Print a warning if other programs used the processor meanwhile."""
    if cores > BUSY:
        text = f"other programs used up to {cores:.1f} cores meanwhile: measure again on an idle machine"
        paragraph(err(), text, style="yellow")
