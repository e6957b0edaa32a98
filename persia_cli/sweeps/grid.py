"""The runs of a sweep: command-line arguments with lists of values, composed and checked."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from persia_cli.config import available
from persia_cli.config.compose import compose_run
from persia_cli.config.expected import keys
from persia_cli.config.schema import EverySplit, ParquetDataset, Run
from persia_cli.config.schema.perceptrons import Perceptrons
from persia_cli.errors import ConfigError, count
from persia_cli.sweeps.points import FOLD, REPEATS, Axis, NumberRange, Point, combine, key_of, point_of

MAX_POINTS = 10_000

NO_CHECKPOINTS = ("checkpoint.every_minutes=null", "checkpoint.at_end=false")
"""The settings that a sweep adds: it compares models, and saves them only if the user asks for this."""


def choices(word: str) -> list[str]:
    """Return one argument for each value that an argument of a sweep lists; one with a single value stays unchanged.

    The grammar is Hydra's: `a=1,2`, `a=range(0,5)`, `a=choice(1,2)`; brackets, braces and quotes keep commas together.
    Raises ConfigError for a sweep without a fixed list of values, with an empty one, or with more than MAX_POINTS.
    """
    override, key = _sweep_in(word), word.partition("=")[0]
    if override is None:
        return [word]
    value = override.value()
    if isinstance(value, RangeSweep):
        _check_range(word, value)
    elif isinstance(value, IntervalSweep):
        raise ConfigError(f"{word}: a grid needs a list of values; to draw from an interval, add --search tpe")
    elif not isinstance(value, ChoiceSweep) or any(isinstance(each, RangeSweep) for each in value.list):
        raise ConfigError(f"{word}: a sweep needs a list of its values: {key}=1,2,3 or {key}=range(1,4)")
    if value.shuffle:
        raise ConfigError(f"{word}: a sweep trains every value, so their order does not matter; list them unshuffled")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def _sweep_in(word: str) -> Override | None:
    """Return the sweep that an argument asks for; None for one with a single value."""
    if "=" not in word or word.startswith("~"):
        return None
    try:
        override = OverridesParser.create().parse_override(word.lstrip("+"))
    except HydraException:
        return None  # it is text, or a mistake that composing reports
    return override if override.is_sweep_override() else None


WHOLE = re.compile(r"interval\(\s*(\w+=)?[+-]?\d+\s*,\s*(\w+=)?[+-]?\d+\s*\)")
"""An interval with whole ends, which Hydra itself turns into fractions."""


def span_of(word: str) -> NumberRange | None:
    """Return the numbers that an argument of a search draws from; None for a value or a list of values.

    An interval includes both ends, a range only the first, as in Hydra. Raises ConfigError for one that has no numbers.
    """
    override = _sweep_in(word)
    value = override.value() if override is not None else None
    if not isinstance(value, IntervalSweep | RangeSweep):
        return None
    log = "log" in value.tags
    if isinstance(value, RangeSweep):
        _check_range(word, value)
        if log or value.shuffle:
            raise ConfigError(f"{word}: a search draws from a range without log and shuffle; take them out")
        numbers = [each if isinstance(each, int) else float(f"{each:.12g}") for each in sorted(value.range())]
        return NumberRange(numbers[0], numbers[-1], abs(value.step)) if len(numbers) > 1 else None
    low, high = value.start, value.end
    if low is None or high is None or not -math.inf < low < high < math.inf or (log and low <= 0):
        least = "above 0, " if log else ""
        raise ConfigError(f"{word}: an interval needs two finite ends, {least}the lower one first")
    if WHOLE.search(word) and "float(" not in word:
        low, high = int(low), int(high)
    return NumberRange(low, high, log=log)


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


RATE = 0.05
"""Learning rate of rows that stands for one that the data decide."""


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
    axes = _axes([Axis(key_of(word), tuple(dict.fromkeys(choices(word)))) for word in arguments])
    number = math.prod(len(axis.arguments) for axis in axes)
    if number > MAX_POINTS:
        raise ConfigError(f"these values make {number:,} points; a sweep has at most {MAX_POINTS:,}")
    fits = _Fits(axes, folders)
    return _composed([fits.fitted(point) for point in combine(axes)], folders)


@dataclass(frozen=True)
class Space:
    """The settings that a search chooses from."""

    axes: Sequence[Axis]
    fits: "_Fits"

    @property
    def swept(self) -> list[Axis]:
        """The axes with more than one value."""
        return [axis for axis in self.axes if axis.swept]

    @property
    def defaults(self) -> Point:
        """The point without the searched keys: the unchanged configuration."""
        return self.fits.fitted(Point(tuple(axis.arguments[0] for axis in self.axes if not axis.swept), ()))

    def point(self, values: Mapping[str, str]) -> Point:
        """Return the point with these values of the swept axes, by key."""
        words = (f"{axis.word}={values[axis.key]}" if axis.swept else axis.arguments[0] for axis in self.axes)
        return self.fits.fitted(point_of(self.axes, list(words)))


def compose_space(arguments: Sequence[str], folders: Sequence[Path] = ()) -> tuple[Space, list[GridRun]]:
    """Return what a search chooses from, and runs: its defaults first, then some that together have each choice, and
    the ends of each span.

    Without a searched key it chooses from those of `_usual_space`. Raises ConfigError as `compose_grid` does.
    """
    axes = _axes([_searched(word) for word in arguments])
    if not any(axis.swept for axis in axes):
        usual = _usual_space(compose_run(arguments, folders), {axis.key for axis in axes})
        axes = _axes([_searched(word) for word in [*arguments, *usual]])
    swept = [axis for axis in axes if axis.swept]
    if repeated := [axis.key for axis in swept if axis.key in REPEATS]:
        raise ConfigError(f"{repeated[0]} cannot be searched, since its best value is luck; see --repeat and --folds")
    space = Space(axes, _Fits(axes, folders))
    longest = max(len(axis.arguments) for axis in axes)
    words = [[axis.arguments[min(number, len(axis.arguments) - 1)] for axis in axes] for number in range(longest)]
    return space, _composed([space.defaults, *(space.fits.fitted(point_of(axes, each)) for each in words)], folders)


def _usual_space(run: Run, given: Collection[str]) -> list[str]:
    """Return the arguments that usually matter, with values around those of the run; given keys stay unchanged."""
    rate = run.optimizer.embedding.lr if isinstance(run.optimizer.embedding.lr, float) else RATE
    space = {
        "optimizer.embedding.lr": f"tag(log,interval({rate / 10:g},{rate * 3:g}))",
        "model.dim": f"{run.model.dim},{2 * run.model.dim}",
    }
    model = run.model
    if isinstance(model, Perceptrons) and any(getattr(model, name) for name in model.LISTS):
        space |= {"model.norm": "none,batch", "model.dropout": "0.0,0.1,0.2,0.3,0.4"}
    if isinstance(model, Perceptrons) and (widths := getattr(model, "hidden", ())):
        smaller = [max(1, width // 2) for width in widths]
        space["model.hidden"] = ",".join(str(list(each)).replace(" ", "") for each in (smaller, widths))
    return [f"{key}={values}" for key, values in space.items() if key not in given]


def _searched(word: str) -> Axis:
    """Return the axis of an argument of a search."""
    span = span_of(word)
    if span is None:
        return Axis(key_of(word), tuple(dict.fromkeys(choices(word))))
    between = span.high if span.is_whole else span.low + (span.high - span.low) / math.e
    texts = dict.fromkeys(map(span.text, (span.low, between, span.high)))
    return Axis(key_of(word), tuple(f"{word.partition('=')[0]}={text}" for text in texts), span)


def every_fold(arguments: Sequence[str], folders: Sequence[Path] = ()) -> tuple[str, ...]:
    """Return the arguments of a grid over all folds; raises ConfigError if the split has none, or a fold is missing."""
    others = [word for word in arguments if key_of(word) != FOLD]
    dataset = compose_grid(others, folders)[0].run.dataset
    split = dataset.split if isinstance(dataset, ParquetDataset) else None
    if not isinstance(split, EverySplit):
        raise ConfigError(
            "--folds needs a split by row number, dataset.split={kind: every, n: 5}, whose parts are folds"
        )
    folds = f"{FOLD}=range(0,{split.n})"
    for word in arguments:
        if key_of(word) == FOLD and sorted(choices(word.lstrip("+"))) != sorted(choices(folds)):
            raise ConfigError(f"{word}: --folds evaluates each of the {split.n} folds: {folds}")
    return (*others, folds)


def _axes(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes with those that a sweep adds; raises ConfigError for a swept key that is given twice."""
    keys = [axis.key for axis in axes]
    added = [Axis(key_of(setting), (setting,)) for setting in NO_CHECKPOINTS if key_of(setting) not in keys]
    _refuse_twice(axes)
    return [*reversed(added), *axes]


def _composed(points: Sequence[Point], folders: Sequence[Path]) -> list[GridRun]:
    """Compose the run of each distinct point; raises ConfigError naming every mistake and its points."""
    points = list(dict.fromkeys(points))
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

    def __init__(self, axes: Sequence[Axis], folders: Sequence[Path]) -> None:
        groups = [axis.key for axis in axes if axis.swept and axis.key in available.groups(folders)]
        self._partial = [axis.key for axis in axes if any(axis.key.startswith(f"{group}.") for group in groups)]
        self._folders = folders
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
