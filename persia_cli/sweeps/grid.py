"""The runs of a sweep: command-line arguments with lists of values, composed and checked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, RangeSweep
from hydra.errors import HydraException

from persia_cli.config import offers
from persia_cli.config.compose import compose_run
from persia_cli.config.expected import keys
from persia_cli.config.schema import Run
from persia_cli.errors import ConfigError, count
from persia_cli.sweeps.points import Axis, Point, combine, key_of

MAX_POINTS = 10_000

NO_CHECKPOINTS = ("checkpoint.every_minutes=null", "checkpoint.at_end=false")
"""The settings that a sweep adds: it compares models, and saves them only if the user asks for this."""


def choices(word: str) -> list[str]:
    """Return one argument for each value that an argument of a sweep lists; one with a single value stays unchanged.

    The grammar is Hydra's: `a=1,2`, `a=range(0,5)`, `a=choice(1,2)`; brackets, braces and quotes keep commas together.
    Raises ConfigError for a sweep without a fixed list of values, with an empty one, or with more than MAX_POINTS.
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
    """Raise ConfigError unless a range has at least one value and at most MAX_POINTS."""
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
    if number > MAX_POINTS:
        raise ConfigError(f"{word}: this range has {number:,} values; a sweep has at most {MAX_POINTS:,} points")


@dataclass(frozen=True)
class GridRun:
    """A point of a sweep and its run."""

    point: Point
    run: Run


def compose_grid(arguments: Sequence[str], folders: Sequence[Path] = ()) -> list[GridRun]:
    """Compose and check the run of every combination of values, before any of them starts.

    A key below a config group whose choices are swept (`mode=sync,hybrid mode.staleness=8`) applies to the choices that
    have it; points with equal settings become one. Raises ConfigError naming every mistake and its point.
    """
    axes = [Axis(key_of(word), tuple(dict.fromkeys(choices(word)))) for word in arguments]
    for setting in NO_CHECKPOINTS:
        if not any(axis.key == key_of(setting) for axis in axes):
            axes.insert(0, Axis(key_of(setting), (setting,)))
    _refuse_twice(axes)
    number = math.prod(len(axis.arguments) for axis in axes)
    if number > MAX_POINTS:
        raise ConfigError(f"these values make {number:,} points; a sweep has at most {MAX_POINTS:,}")
    points = combine(axes)
    groups = [axis.key for axis in axes if axis.swept and axis.key in offers.groups(folders)]
    partial = [axis.key for axis in axes if any(axis.key.startswith(f"{group}.") for group in groups)]
    fits = _Fits(folders, partial)
    points = list(dict.fromkeys(fits.fitted(point) for point in points))
    wrong: dict[str, list[str]] = {}
    runs = []
    for point in points:
        try:
            runs.append(GridRun(point, compose_run(point.arguments, folders)))
        except ConfigError as error:
            for sentence in str(error).splitlines():
                wrong.setdefault(sentence, []).append(point.label)
    _note_shared(runs, wrong)
    if wrong:
        raise ConfigError("\n".join(_sentence(each, labels, len(points)) for each, labels in wrong.items()))
    return runs


def _note_shared(runs: Sequence[GridRun], wrong: dict[str, list[str]]) -> None:
    """Note the points whose checkpoints would be in one folder, which can only be one run's."""
    points: dict[str, list[str]] = {}
    for each in runs:
        if (path := each.run.checkpoint.path) is not None:
            points.setdefault(path, []).append(each.point.label)
    for path, labels in points.items():
        if len(labels) > 1:
            wrong[
                f"checkpoint.path={path}: points of a sweep cannot share a folder of checkpoints; give "
                "checkpoint.path=null, and each has its own in its run directory"
            ] = labels


def _refuse_twice(axes: Sequence[Axis]) -> None:
    """Refuse a key that is both swept and given again, since only one of the two could apply."""
    names = [axis.key for axis in axes]
    twice = sorted({axis.key for axis in axes if axis.swept and names.count(axis.key) > 1})
    if twice:
        raise ConfigError("\n".join(f"{key} is swept and given a second time; give it once" for key in twice))


def _sentence(sentence: str, labels: Sequence[str], points: int) -> str:
    """Return the sentence of a mistake with its points."""
    if len(labels) == points:
        return sentence
    others = len(labels) - 1
    more = f" and {count(others, 'more point')}" if others else ""
    return f"{sentence} (point {labels[0]}{more})"


class _Fits:
    """Finds the keys below swept groups that each choice of these groups has."""

    def __init__(self, folders: Sequence[Path], partial: Sequence[str]) -> None:
        self._folders = folders
        self._partial = partial
        self._there: dict[tuple[str, ...], frozenset[str] | None] = {}

    def fitted(self, point: Point) -> Point:
        """Return the point without keys that its choices lack; a key that no choice has stays, to be reported later."""
        if not self._partial:
            return point
        bare = point
        for key in self._partial:
            bare = bare.without(key)
        there = self._keys(bare)
        if there is None:
            return point
        for key in self._partial:
            if key not in there and key in {path for path, _ in keys(Run)}:
                point = point.without(key)
        return point

    def _keys(self, bare: Point) -> frozenset[str] | None:
        """Return the key paths of a point's run; None if it cannot be composed."""
        arguments = tuple(word for word in bare.arguments if key_of(word) != "seed")
        if arguments not in self._there:
            try:
                run = compose_run(arguments, self._folders)
                self._there[arguments] = frozenset(path for path, _ in keys(Run, run.model_dump()))
            except ConfigError:
                self._there[arguments] = None
        return self._there[arguments]
