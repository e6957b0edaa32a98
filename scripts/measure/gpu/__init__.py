"""The checks of `python -m scripts.measure gpu`, as results: how far each is from what is right, by what is allowed.

A check is a function without arguments that yields results. A deviation is a multiple of the allowed one, and a check
without numbers has 0 if it has passed; the target of both is at most 1.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.result import OURS, Result, Side

Check = Callable[[], Iterator[Result]]
Left = Callable[[], float]
"""A function that returns the seconds left for a part."""
LEAST_S = 5.0
"""Seconds that a check needs at least."""


def run_checks(checks: Mapping[str, Check], left: Left) -> Iterator[Result]:
    """Run one check after the other, while the time left is enough for the longest so far; what raises fails alone."""
    longest = 0.0
    for name, check in checks.items():
        before = left()
        if before < max(LEAST_S, 1.5 * longest):
            yield left_out(name)
            continue
        try:
            yield from check()
        except TimeoutError:
            yield left_out(name)
        except Exception as error:
            text = next((line for line in str(error).splitlines() if line.strip()), "")
            yield checked(name, False, f"{type(error).__name__}: {text}"[:300])
        longest = max(longest, before - left())


def checked(name: str, passed: bool, note: str) -> Result:
    """Return the result of a check without numbers."""
    return _result(f"check {name}", "of what is allowed", 0.0 if passed else math.inf, note)


def compared(name: str, found: Mapping[str, float], allowed: Mapping[str, float], note: str = "") -> Result:
    """Return the greatest deviation of all parts as a multiple of the allowed one; NaN if one is NaN, which fails."""
    worst = float(np.max([found[part] / allowed[part] for part in found]))
    parts = ", ".join(f"{part} {value:.1e} (at most {allowed[part]:.1e})" for part, value in found.items())
    return _result(f"check {name}", "of what is allowed", worst, "; ".join(filter(None, [parts, note])))


def left_out(name: str) -> Result:
    """Return that a check was left out for lack of time."""
    return _result(f"left out: {name}", "", 0.0, "there was no time left for it")


def _result(name: str, unit: str, value: float, note: str) -> Result:
    return Result("", name, unit, [Side(OURS, value, value, value)], note=note)


def deviation(ours: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Return the Euclidean norm of the difference over that of the reference."""
    exact = reference.astype(np.float64).reshape(-1)
    return float(np.linalg.norm(ours.reshape(-1) - exact)) / max(float(np.linalg.norm(exact)), 1e-12)
