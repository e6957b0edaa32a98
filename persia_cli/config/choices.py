"""Words of a sweep: the values that a word lists, counted before they are expanded."""

import math
from decimal import Decimal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, RangeSweep
from hydra.errors import HydraException

from persia_cli.errors import ConfigError

MOST_POINTS = 10_000


def choices(word: str) -> list[str]:
    """Return one word for each value that a word of a sweep lists; a word with a single value is returned unchanged.

    The grammar is Hydra's: `a=1,2`, `a=range(0,5)`, `a=choice(1,2)`; brackets, braces and quotes keep commas together.
    Raises ConfigError for a sweep without a fixed list of values, with an empty one, or with more than MOST_POINTS.
    """
    key, equals, _ = word.partition("=")
    if not equals or word.startswith("~"):
        return [word]
    try:
        override = OverridesParser.create().parse_override(word.lstrip("+"))
    except HydraException:
        return [word]  # it is text, or a mistake that composing reports
    if not override.is_sweep_override():
        return [word]
    value = override.value()
    if isinstance(value, RangeSweep):
        _check_range(word, value)
    elif not isinstance(value, ChoiceSweep) or any(isinstance(each, RangeSweep) for each in value.list):
        raise ConfigError(f"{word}: a sweep needs a list of its values: {key}=1,2,3 or {key}=range(1,4)")
    if value.shuffle:
        raise ConfigError(f"{word}: a sweep trains every value, so their order does not matter; list them unshuffled")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def _check_range(word: str, values: RangeSweep) -> None:
    """Raise ConfigError unless a range has at least one value and at most MOST_POINTS."""
    start, stop, step = values.start, values.stop, values.step
    if start is None or stop is None or not all(map(math.isfinite, (start, stop, step))):
        raise ConfigError(f"{word}: a range needs finite ends and a finite step, such as range(0,5) or range(0,1,0.25)")
    if step == 0:
        raise ConfigError(f"{word}: the step of this range is 0, so it never ends; leave the step out or change it")
    number = math.ceil((Decimal(stop) - Decimal(start)) / Decimal(step))
    if number <= 0:
        raise ConfigError(
            f"{word}: this range is empty: by steps of {step:g} there is nothing from {start:g} to {stop:g}"
        )
    if number > MOST_POINTS:
        raise ConfigError(f"{word}: this range has {number:,} values; a sweep has at most {MOST_POINTS:,} points")
