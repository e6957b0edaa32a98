"""The choice of the steps of a job that are traced."""

import re

from persia_cli.errors import UserError

WARM_UP = 20
"""Number of steps that are skipped by default, until buffers and caches are filled."""
STEPS = 200


def trace_window(words: str | None, steps: int) -> tuple[int, int]:
    """Return the steps [first, last) that `FIRST:LAST` names, by default 200 after the first 20 (a tenth, if fewer).

    Raises UserError for other words, and for steps that a training of `steps` steps does not have.
    """
    if words is None:
        first = min(WARM_UP, steps // 10)
        return first, min(first + STEPS, steps)
    found = re.fullmatch(r"(\d+):(\d+)", words)
    if found is None or int(found[1]) >= int(found[2]):
        raise UserError(f"--trace-steps={words}: expected FIRST:LAST with FIRST below LAST, such as 20:220")
    first, last = int(found[1]), min(int(found[2]), steps)
    if first >= last:
        raise UserError(f"--trace-steps={words}: the training has the steps 0 to {steps - 1} only")
    return first, last
